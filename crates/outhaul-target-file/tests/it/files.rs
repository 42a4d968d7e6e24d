//! Regular files: half lines, full disks, locks, rotation.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use outhaul_target::outhaul_event::Event;
use outhaul_target::testkit::attempt;
use outhaul_target::{Attempt, ErrorKind, Format, Target, TargetUri};
use outhaul_target_file::{FileOptions, FileTarget};
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::tempdir;

use crate::support::{deliver, event, ids, options, target};

#[tokio::test]
async fn a_batch_is_appended_and_nothing_is_truncated() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    fs::write(&path, "what was there\n").unwrap();
    let file = target(&path);
    let batch: Vec<Attempt> = (0..3).map(event).collect();
    assert_eq!(deliver(&file, &batch).await, [Ok(()), Ok(()), Ok(())]);
    let text = fs::read(&path).unwrap();
    assert_eq!(ids(text.strip_prefix(b"what was there\n").unwrap()), [0, 1, 2]);
}

#[tokio::test]
async fn a_new_file_is_for_its_owner_alone() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    assert_eq!(deliver(&target(&path), &[event(1)]).await, [Ok(())]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn the_half_line_of_a_crash_is_cut_off_wherever_it_broke() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    let whole = [event(1).event.to_json(), b"\n".to_vec()].concat();
    let last = event(2).event.to_json();
    for cut in 1..last.len() {
        fs::write(&path, [&whole[..], &last[..cut]].concat()).unwrap();
        assert_eq!(deliver(&target(&path), &[event(3)]).await, [Ok(())]);
        assert_eq!(ids(&fs::read(&path).unwrap()), [1, 3], "cut at {cut}");
    }
}

#[tokio::test]
async fn a_half_line_longer_than_a_piece_is_found() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    for (before, length) in [("", 300_000), ("{}\n", 65_536), ("{}\n", 65_535), ("{}\n", 200_001)] {
        fs::write(&path, format!("{before}{{{}", "x".repeat(length - 1))).unwrap();
        assert_eq!(deliver(&target(&path), &[event(3)]).await, [Ok(())]);
        assert_eq!(ids(fs::read(&path).unwrap().strip_prefix(before.as_bytes()).unwrap()), [3]);
    }
}

#[tokio::test]
async fn what_may_be_another_programs_is_ended_not_cut() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    for there in ["{\"a\":1}", "a line of a log", "{}\n12"] {
        fs::write(&path, there).unwrap();
        assert_eq!(deliver(&target(&path), &[event(1)]).await, [Ok(())]);
        let text = fs::read_to_string(&path).unwrap();
        let rest = text.strip_prefix(there).and_then(|rest| rest.strip_prefix('\n')).unwrap();
        assert_eq!(ids(rest.as_bytes()), [1]);
    }
}

/// A write that fails part of the way: a limit on the size of files stands for a full disk. It holds for a process,
/// so the test runs itself again under it.
#[test]
fn a_write_that_fails_part_of_the_way_leaves_no_half_line() {
    const CHILD: &str = "OUTHAUL_TEST_UNDER_A_LIMIT";
    if let Some(path) = std::env::var_os(CHILD) {
        return append_under_a_limit(Path::new(&path));
    }
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    let before = "{}\n".repeat(340);
    fs::write(&path, &before).unwrap();
    let test = "files::a_write_that_fails_part_of_the_way_leaves_no_half_line";
    let child = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; exec "$0" --exact "$1""#])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(CHILD, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
    let marker = fs::metadata(path.with_extension("tried")).unwrap();
    assert_eq!(marker.len(), 0, "the child came to its end");
}

fn append_under_a_limit(path: &Path) {
    let limit = Rlimit { current: Some(1_500), maximum: Some(1_500) };
    setrlimit(Resource::Fsize, limit).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batch: Vec<Attempt> = (0..10).map(event).collect();
    let file = target(path);
    let results = runtime.block_on(deliver(&file, &batch));
    assert_eq!(results, [Err(ErrorKind::DiskFull); 10]);
    let length = fs::metadata(path).unwrap().len();
    assert_eq!(length, 1_020);
    fs::write(path.with_extension("tried"), "").unwrap();
}

#[tokio::test]
async fn a_device_that_is_full_is_a_full_disk() {
    let file = target(Path::new("/dev/full"));
    assert_eq!(
        deliver(&file, &[event(1), event(2)]).await,
        [Err(ErrorKind::DiskFull), Err(ErrorKind::DiskFull)]
    );
    assert_eq!(deliver(&target(Path::new("/dev/null")), &[event(1)]).await, [Ok(())]);
}

#[tokio::test]
async fn a_missing_directory_and_a_directory_as_the_path_hold_the_target() {
    let dir = tempdir().unwrap();
    let missing = target(&dir.path().join("no/out"));
    assert_eq!(deliver(&missing, &[event(1)]).await, [Err(ErrorKind::DestinationMissing)]);
    assert_eq!(missing.probe().await.unwrap_err().kind(), ErrorKind::DestinationMissing);
    let directory = target(dir.path());
    assert_eq!(deliver(&directory, &[event(1)]).await, [Err(ErrorKind::Configuration)]);
    fs::create_dir(dir.path().join("no")).unwrap();
    assert_eq!(deliver(&missing, &[event(1)]).await, [Ok(())]);
}

#[tokio::test]
async fn a_file_that_another_process_writes_to_is_locked() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    let (one, two) = (target(&path), target(&path));
    assert_eq!(deliver(&one, &[event(1)]).await, [Ok(())]);
    assert_eq!(deliver(&two, &[event(2)]).await, [Err(ErrorKind::Locked)]);
    one.close().await.unwrap();
    assert_eq!(deliver(&two, &[event(2)]).await, [Ok(())]);
    assert_eq!(ids(&fs::read(&path).unwrap()), [1, 2]);
}

#[tokio::test]
async fn a_file_that_was_moved_or_removed_is_created_again() {
    let dir = tempdir().unwrap();
    let (path, old) = (dir.path().join("out"), dir.path().join("out.1"));
    let file = target(&path);
    assert_eq!(deliver(&file, &[event(1)]).await, [Ok(())]);
    rustix::fs::rename(&path, &old).unwrap();
    assert_eq!(deliver(&file, &[event(2)]).await, [Ok(())]);
    assert_eq!((ids(&fs::read(&old).unwrap()), ids(&fs::read(&path).unwrap())), (vec![1], vec![2]));
    rustix::fs::rename(&path, &old).unwrap();
    file.reopen().await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    fs::remove_file(&path).unwrap();
    assert_eq!(deliver(&file, &[event(3)]).await, [Ok(())]);
    assert_eq!(ids(&fs::read(&path).unwrap()), [3]);
}

#[tokio::test]
async fn behind_an_event_that_cannot_be_written_its_pid_is_not_tried() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("out");
    let file = FileTarget::new(FileOptions { format: Format::S3, ..options(&path) });
    let of = |pid: &str, body: &'static str| {
        attempt(Event::builder("t", "/test").pid(pid).body("application/json", body).build().unwrap())
    };
    let batch = [of("a", "{}"), of("b", "[]"), of("b", "{}"), of("a", "{}")];
    let expected = [Ok(()), Err(ErrorKind::Malformed), Err(ErrorKind::Skipped), Ok(())];
    assert_eq!(deliver(&file, &batch).await, expected);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[test]
fn a_destination_is_an_absolute_path() {
    let of = |text: &str| FileTarget::from_uri(TargetUri::parse(text).unwrap()).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(
        of("file:out.ndjson?outhaul.batch=2").destination(),
        here.join("out.ndjson").display().to_string()
    );
    assert_eq!(of("stdout:").destination(), "stdout:");
    assert_eq!((of("file:x").kind(), of("stdout:").kind()), ("file", "stdout"));
}
