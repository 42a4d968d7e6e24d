//! The embedded engine of the key-value store: opening, killing, damage, a full disk.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use outhaul_store::kv::{Batch, FjallKv, FjallOptions, KvError, KvLimits, KvStore, Revision, Scan};

use super::{LIMITS, put, scanned};

pub(super) async fn open(dir: &Path, limits: KvLimits) -> Result<FjallKv, KvError> {
    FjallKv::open(dir, FjallOptions { limits, reserve_bytes: 1 << 20, ..FjallOptions::default() }).await
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let kv = dir.path().join("kv");
    let mut written = Vec::new();
    for round in 0..4 {
        let store = open(&kv, LIMITS).await.unwrap();
        let page = store.scan(Scan::default()).await.unwrap();
        let found = page.rows.iter().map(|row| (row.key.clone(), row.revision)).collect::<Vec<_>>();
        assert_eq!(found, written);
        let name = format!("{round}");
        let revision = put(&store, &name, "x").await;
        assert!(written.last().is_none_or(|(_, last)| revision > *last));
        written.push((Bytes::from(name), revision));
        // A drop without a close keeps what was answered as well.
        if round % 2 == 0 {
            store.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_directory_is_opened_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), LIMITS).await.unwrap();
    let error = open(dir.path(), LIMITS).await.unwrap_err();
    assert!(matches!(&error, KvError::InUse(path) if path == dir.path()), "{error}");
    assert!(error.to_string().contains("is in use; stop whoever has it"));
    put(&first, "a", "1").await;
    // Closing gives it back, though the value is still there.
    first.close().await.unwrap();
    let second = open(dir.path(), LIMITS).await.unwrap();
    assert!(second.get(b"a").await.unwrap().is_some());
}

#[tokio::test]
async fn what_another_wrote_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
    assert!(matches!(open(dir.path(), LIMITS).await, Err(KvError::NotAKvStore(_))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let journal = r#"{"engine":"journal","format":0,"written_by":"9.8.7"}"#;
    fs::write(dir.path().join("format"), journal).unwrap();
    let error = open(dir.path(), LIMITS).await.unwrap_err().to_string();
    assert!(error.contains("is journal 0, written by outhaul 9.8.7; this build reads kv-fjall 0"), "{error}");
    fs::write(dir.path().join("format"), "rubbish").unwrap();
    assert!(matches!(open(dir.path(), LIMITS).await, Err(KvError::NotAKvStore(_))));
}

#[tokio::test]
async fn an_option_of_zero_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for options in [
        FjallOptions { cache_bytes: 0, ..FjallOptions::default() },
        FjallOptions { write_buffer_bytes: 0, ..FjallOptions::default() },
        FjallOptions { waiting_bytes_max: 0, ..FjallOptions::default() },
    ] {
        assert!(matches!(FjallKv::open(dir.path(), options).await, Err(KvError::Zero(_))));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let kv = dir.path();
    open(kv, LIMITS).await.unwrap().close().await.unwrap();
    fs::remove_dir_all(kv.join("rows")).unwrap();
    fs::create_dir(kv.join("rows.new")).unwrap();
    fs::write(kv.join("rows.new/0.jnl"), "half").unwrap();
    let store = open(kv, LIMITS).await.unwrap();
    put(&store, "a", "1").await;
    store.close().await.unwrap();
    assert!(!kv.join("rows.new").exists());
}

#[tokio::test]
async fn nobody_else_can_read_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let kv = dir.path().join("deep/kv");
    let store = open(&kv, LIMITS).await.unwrap();
    put(&store, "a", "1").await;
    check_modes(&kv);
    store.close().await.unwrap();
    check_modes(&kv);
    fs::set_permissions(&kv, fs::Permissions::from_mode(0o755)).unwrap();
    open(&kv, LIMITS).await.unwrap();
    check_modes(&kv);
}

fn check_modes(path: &Path) {
    let about = fs::metadata(path).unwrap();
    let expected = if about.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(about.permissions().mode() & 0o777, expected, "{}", path.display());
    if about.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| check_modes(&entry.unwrap().path()));
    }
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_refuses_batches_and_goes_on_reading() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), LIMITS).await.unwrap();
    let revision = put(&store, "a", "1").await;
    store.close().await.unwrap();
    let options = FjallOptions { reserve_bytes: u64::MAX, limits: LIMITS, ..FjallOptions::default() };
    let store = FjallKv::open(dir.path(), options).await.unwrap();
    let refused = store.apply(Batch::new().put("a", "2").clone()).await.unwrap_err();
    assert!(matches!(&refused, KvError::DiskFull(path) if path == dir.path()), "{refused}");
    assert!(store.failure().is_none());
    assert_eq!(store.get(b"a").await.unwrap().unwrap().revision, revision);
    assert_eq!(store.apply(Batch::new()).await.unwrap(), revision, "what writes nothing needs no space");
    store.close().await.unwrap();
}

/// The newest of the engine's journals.
fn journal(kv: &Path) -> PathBuf {
    let files = fs::read_dir(kv.join("rows")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap()
}

#[tokio::test]
async fn rows_that_are_gone_after_a_clean_close_are_told_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), LIMITS).await.unwrap();
    put(&store, "a", "1").await;
    let kept = fs::metadata(journal(dir.path())).unwrap().len();
    put(&store, "b", "2").await;
    store.close().await.unwrap();
    let file = fs::OpenOptions::new().write(true).open(journal(dir.path())).unwrap();
    assert!(file.metadata().unwrap().len() > kept);
    file.set_len(kept).unwrap();
    let error = open(dir.path(), LIMITS).await.unwrap_err();
    assert!(matches!(error, KvError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("it was closed at revision 2, and its rows end at 1"), "{error}");

    fs::remove_dir_all(dir.path().join("rows")).unwrap();
    assert!(matches!(open(dir.path(), LIMITS).await, Err(KvError::Damaged { .. })));
}

/// As a power cut leaves it that hits the write of the last batch.
#[tokio::test]
async fn a_batch_that_was_written_in_part_is_not_there_and_those_before_it_are() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let store = open(&live, LIMITS).await.unwrap();
    for key in ["a", "b"] {
        put(&store, key, "there").await;
    }
    let before = fs::metadata(journal(&live)).unwrap().len();
    let mut last = Batch::new();
    store.apply(last.put("c", "torn").put("d", "torn").delete("a").clone()).await.unwrap();
    let after = fs::metadata(journal(&live)).unwrap().len();
    assert!(before < after);
    // A clean close is not noted yet, so that the copies are as after a kill.
    for cut in (before..after).step_by(7) {
        let copy = dir.path().join(format!("cut-{cut}"));
        copy_all(&live, &copy);
        fs::OpenOptions::new().write(true).open(journal(&copy)).unwrap().set_len(cut).unwrap();
        let store = open(&copy, LIMITS).await.unwrap();
        assert_eq!(scanned(&store, Scan::default()).await, "a b", "cut at {cut} of {before}..{after}");
        assert_eq!(put(&store, "e", "").await, Revision(3));
        store.close().await.unwrap();
        let store = open(&copy, LIMITS).await.unwrap();
        assert_eq!(scanned(&store, Scan::default()).await, "a b e");
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

const VICTIM_DIR: &str = "OUTHAUL_TEST_KV_VICTIM";
const GROUP_KEYS: u64 = 7;

/// The process that is killed: this very program, told to run this one test.
#[tokio::test]
async fn the_victim_of_kills_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    // A small buffer, so that tables are written and merged while it is killed.
    let options = FjallOptions { write_buffer_bytes: 64 << 10, ..FjallOptions::default() };
    let store = FjallKv::open(Path::new(&dir), options).await.unwrap();
    let mut group = store.apply(Batch::new()).await.unwrap().0;
    loop {
        group += 1;
        let mut batch = Batch::new();
        for key in 0..GROUP_KEYS {
            batch.put(format!("{group:08}/{key}"), vec![group as u8; 300]);
        }
        batch.put("newest", group.to_string());
        store.apply(batch).await.unwrap();
        println!("\nacknowledged {group}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let kv = dir.path().join("kv");
    let (mut acknowledged, mut rounds) = (0, 0);
    while rounds < 6 * crate::support::scale() {
        rounds += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kv::disk::the_victim_of_kills_writes_until_it_is_killed", "--nocapture"])
            .env(VICTIM_DIR, &kv)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let numbers = lines.filter_map(|line| line.ok()?.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        let mut count = 0;
        let until = fastrand::usize(1..60);
        for number in numbers {
            assert!(number > acknowledged, "a group was written twice");
            acknowledged = number;
            count += 1;
            if count == until {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(count >= until, "the child ended by itself after {count} of {until}");

        let store = open(&kv, KvLimits::default()).await.unwrap();
        let newest = store.get(b"newest").await.unwrap().unwrap();
        let last = std::str::from_utf8(&newest.value).unwrap().parse::<u64>().unwrap();
        assert!(
            last >= acknowledged,
            "{acknowledged} was acknowledged, and {last} is the last that is there"
        );
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = store
                .scan(Scan { after, limit: 1000, ..Scan::range(..Bytes::from("newest")) })
                .await
                .unwrap();
            rows.extend(page.rows);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = (1..=last).flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key)));
        let expected =
            expected.map(|(group, key)| (format!("{group:08}/{key}"), Revision(group), group as u8));
        let found = rows.iter().map(|row| {
            assert_eq!(row.value.len(), 300);
            (String::from_utf8(row.key.to_vec()).unwrap(), row.revision, row.value[299])
        });
        assert!(found.eq(expected), "a group is there in part, or gone");
        acknowledged = last;
        // Now and then after a clean close, otherwise after two crashes in a row.
        if rounds % 3 == 0 {
            store.close().await.unwrap();
        }
    }
}
