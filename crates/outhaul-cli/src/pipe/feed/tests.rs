use outhaul::store::Input;

use super::*;

/// What a directory would remember, and the events that would be in it.
#[derive(Default)]
struct Directory {
    input: Option<Input>,
    admitted: Vec<(u64, String)>,
}

/// Runs an input against a directory; the run crashes after that many admitted events.
fn run(directory: &mut Directory, input: &[u8], crash_after: usize) -> (Vec<Fed>, Option<End>) {
    let resume = directory.input.as_ref().map(|input| Resume::read(input).unwrap());
    let mut said = Vec::new();
    let mut end = None;
    let mut left = crash_after;
    let send = |fed| {
        match fed {
            Fed::Chunk(chunk) => {
                if let Some(note) = chunk.note {
                    directory.input = Some(Input { note: note.to_bytes(), admitted: Vec::new() });
                }
                for (line, event) in chunk.events {
                    if left == 0 {
                        return false;
                    }
                    left -= 1;
                    let body = String::from_utf8(event.body().to_vec()).unwrap();
                    directory.admitted.push((line, body));
                    directory.input.as_mut().unwrap().admitted.push((line, line));
                }
            }
            Fed::End(ended) => end = Some(ended),
            other => said.push(other),
        }
        true
    };
    Feed::new(input, Reader::new("outhaul:pipe", None), send).run(resume.as_ref());
    (said, end)
}

fn numbers(from: u64, to: u64) -> Vec<u8> {
    (from..=to).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

fn lines_of(directory: &Directory) -> Vec<u64> {
    let mut lines: Vec<_> = directory.admitted.iter().map(|(line, _)| *line).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_line_is_admitted_once_wherever_a_run_crashes() {
    let input = numbers(1, 2_500);
    for crash in [0, 1, 999, 1_000, 1_001, 1_700, 2_499] {
        let mut directory = Directory::default();
        run(&mut directory, &input, crash);
        let (said, end) = run(&mut directory, &input, usize::MAX);
        assert!(matches!(end, Some(End::Done)), "{crash}: {end:?}");
        assert!(said.iter().all(|fed| matches!(fed, Fed::SameInput { .. })), "{crash}: {said:?}");
        assert_eq!(lines_of(&directory), (1..=2_500).collect::<Vec<_>>(), "{crash}");
        assert!(directory.admitted.iter().all(|(line, body)| *body == line.to_string()));
    }
}

#[test]
fn an_input_that_grew_goes_on_behind_its_known_lines() {
    let mut directory = Directory::default();
    run(&mut directory, b"1\n\n3", usize::MAX);
    run(&mut directory, b"1\n\n3\n4\n", usize::MAX);
    run(&mut directory, b"1\r\n\r\n3\r\n4\r\n5\r\n", usize::MAX);
    assert_eq!(lines_of(&directory), [1, 3, 4, 5]);
}

#[test]
fn another_input_starts_over_and_an_empty_one_says_nothing() {
    let mut directory = Directory::default();
    run(&mut directory, &numbers(1, 10), usize::MAX);
    let (said, end) = run(&mut directory, b"", usize::MAX);
    assert!(said.is_empty() && matches!(end, Some(End::Done)), "{said:?} {end:?}");
    let (said, _) = run(&mut directory, &numbers(1, 9), usize::MAX);
    assert!(matches!(said[..], [Fed::OtherInput]), "{said:?}");
    assert_eq!(directory.admitted.len(), 19);
}

#[test]
fn a_difference_behind_the_head_admits_nothing() {
    for (crash, other) in [
        (usize::MAX, [numbers(1, 1_500), numbers(7, 7), numbers(1_502, 3_000)].concat()),
        (2_300, [numbers(1, 2_400), numbers(7, 7), numbers(2_402, 4_000)].concat()),
        (2_300, numbers(1, 2_400)),
    ] {
        let mut directory = Directory::default();
        run(&mut directory, &numbers(1, 3_000), crash);
        let before = directory.admitted.len();
        let (_, end) = run(&mut directory, &other, usize::MAX);
        assert!(matches!(end, Some(End::Differs { .. })), "{end:?}");
        assert_eq!(directory.admitted.len(), before);
    }
}

#[test]
fn a_bad_line_ends_it_and_its_correction_goes_on() {
    let mut directory = Directory::default();
    let (_, end) = run(&mut directory, b"1\n2\n{\"a\":x}\n4\n", usize::MAX);
    assert!(matches!(end, Some(End::Bad { line: 3, column: 6, .. })), "{end:?}");
    assert_eq!(lines_of(&directory), [1, 2]);
    let (_, end) = run(&mut directory, b"1\n2\n3\n4\n", usize::MAX);
    assert!(matches!(end, Some(End::Done)));
    assert_eq!(lines_of(&directory), [1, 2, 3, 4]);
}
