//! `outhaul import`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Ended, Running, pipe, program, values};

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../outhaul-store/tests/golden").join(path)
}

fn import(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().arg("import").args(args).current_dir(dir)).end()
}

fn import_json(dir: &Path, source: &str) -> (Ended, Value) {
    let ended = import(dir, &["rustfs", source, "--data", "data", "--target", "billing", "--json"]);
    let report = serde_json::from_str(&ended.stdout).unwrap();
    (ended, report)
}

#[test]
fn what_waits_in_a_directory_of_rustfs_is_taken_over_once() {
    let dir = tempfile::tempdir().unwrap();
    let source = golden("rustfs/rustfs-webhook-primary").display().to_string();
    let before = std::fs::read_dir(&source).unwrap().count();
    let (ended, report) = import_json(dir.path(), &source);
    let imported = report["imported"].as_u64().unwrap();
    assert!(imported > 3 && report["skipped_already"] == 0, "{report}");
    let bad = report["undecodable"].as_array().unwrap();
    assert!(!bad.is_empty() && bad.iter().all(|bad| !bad["reason"].as_str().unwrap().is_empty()), "{report}");
    ended.ended_with(3).has("outhaul run --data data --to billing=URI");
    let (ended, again) = import_json(dir.path(), &source);
    ended.ended_with(3);
    assert_eq!((&again["imported"], &again["skipped_already"]), (&0.into(), &imported.into()));
    assert_eq!(std::fs::read_dir(&source).unwrap().count(), before, "the source is only read");
    pipe(dir.path(), &["--to", "billing=file:out", "--data", "data"], "").ended_with(0);
    assert_eq!(values(&dir.path().join("out")).len() as u64, imported);
}

#[test]
fn what_waits_in_a_directory_of_minio_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let source = golden("minio/minio-webhook-primary").display().to_string();
    let ended = import(dir.path(), &["minio", &source, "--data", "data", "--target", "billing"]);
    assert!(ended.stdout.contains(" events are taken over, 0 were before"), "{ended:?}");
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:?}");
}

#[test]
fn a_wrong_import_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (args, told) in [
        (["rustfs", "nowhere", "--data", "data", "--target", "a"], "it does not exist"),
        (["rustfs", ".", "--data", "data", "--target", "NO"], "is no target name"),
        (["paper", ".", "--data", "data", "--target", "a"], "rustfs, minio"),
    ] {
        import(dir.path(), &args).ended_with(2).has(told);
        assert!(!dir.path().join("data").exists());
    }
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let ended = import(dir.path(), &["rustfs", "empty", "--data", "data", "--target", "a"]);
    assert_eq!(ended.ended_with(0).stdout, "0 events are taken over, 0 were before\n");
}
