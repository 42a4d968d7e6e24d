//! Pipes: whole lines, readers that stop and leave.

use std::fs::File;
use std::io::{Read as _, pipe};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use outhaul_target::outhaul_event::Event;
use outhaul_target::testkit::attempt;
use outhaul_target::{Attempt, ErrorKind, Target, TargetUri};
use outhaul_target_file::{FileOptions, FileTarget};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tempfile::{TempDir, tempdir};

use crate::support::{deliver, event, ids, target};

/// Larger than what a pipe holds.
fn large(id: usize) -> Attempt {
    let body = format!("\"{}\"", "x".repeat(100_000));
    attempt(Event::builder("t", "/test").id(id.to_string()).pid("p").json(body).build().unwrap())
}

fn fifo() -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    (dir, path)
}

#[tokio::test]
async fn lines_go_to_a_stream_and_a_reader_that_leaves_holds_the_target() {
    let (mut reader, writer) = pipe().unwrap();
    let stream = FileTarget::to_stream(writer.into(), FileOptions::default());
    stream.probe().await.unwrap();
    assert_eq!(deliver(&stream, &[event(1), event(2)]).await, [Ok(()), Ok(())]);
    let mut text = vec![0; 4096];
    let count = reader.read(&mut text).unwrap();
    assert_eq!(ids(&text[..count]), [1, 2]);
    drop(reader);
    assert_eq!(deliver(&stream, &[event(3)]).await, [Err(ErrorKind::ConnectionReset)]);
    assert_eq!(stream.probe().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_ends_the_attempt_and_still_gets_whole_lines() {
    let (mut reader, writer) = pipe().unwrap();
    let options = FileOptions { timeout: Duration::from_millis(300), ..FileOptions::default() };
    let stream = FileTarget::to_stream(writer.into(), options);
    // The first is out whole, the second has begun.
    let results = deliver(&stream, &[event(1), large(2), event(3)]).await;
    assert_eq!(results, [Ok(()), Err(ErrorKind::TimedOut), Err(ErrorKind::TimedOut)]);
    let rest = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        text
    });
    assert_eq!(deliver(&stream, &[large(2), event(3)]).await, [Ok(()), Ok(())]);
    stream.close().await.unwrap();
    assert_eq!(ids(&rest.join().unwrap()), [1, 2, 2, 3]);
}

/// Standard output belongs to a process, so the test runs itself again with a pipe there.
#[tokio::test]
async fn standard_output_gets_the_lines() {
    const CHILD: &str = "OUTHAUL_TEST_STDOUT";
    let test = "streams::standard_output_gets_the_lines";
    if std::env::var_os(CHILD).is_some() {
        let stdout = FileTarget::from_uri(TargetUri::parse("stdout:").unwrap()).unwrap();
        assert_eq!(deliver(&stdout, &[event(1), event(2)]).await, [Ok(()), Ok(())]);
        return stdout.probe().await.unwrap();
    }
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args(["--exact", test]).env(CHILD, "1").output().unwrap();
    assert!(child.status.success());
    // The harness writes there too, and may begin the line.
    let text = String::from_utf8(child.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.find("{\"specversion\"").map(|at| &line[at..]));
    assert_eq!(ids(lines.flat_map(|line| [line, "\n"]).collect::<String>().as_bytes()), [1, 2]);
}

#[tokio::test]
async fn a_named_pipe_waits_for_its_reader_without_blocking() {
    let (_dir, path) = fifo();
    let file = target(&path);
    assert_eq!(deliver(&file, &[event(1)]).await, [Err(ErrorKind::Unreachable)]);
    assert_eq!(file.probe().await.unwrap_err().kind(), ErrorKind::Unreachable);
    let reader =
        || File::from(rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap());
    for id in 1..3 {
        let mut reader = reader();
        // The pipe of the reader before is found broken once.
        while deliver(&file, &[event(id)]).await != [Ok(())] {}
        let mut text = vec![0; 4096];
        let count = reader.read(&mut text).unwrap();
        assert_eq!(ids(&text[..count]), [id]);
    }
}
