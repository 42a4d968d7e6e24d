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
    let failed = report["failed"].as_u64().unwrap();
    assert_eq!((failed, &again["imported"], &again["failed"]), (1, &0.into(), &0.into()));
    assert_eq!(again["skipped_already"], imported + failed);
    let listed =
        Running::start(program().args(["failed", "ls", "--data", "data"]).current_dir(dir.path())).end();
    assert!(listed.ended_with(0).stdout.contains("rejected"), "{}", listed.stdout);
    assert_eq!(std::fs::read_dir(&source).unwrap().count(), before, "the source is only read");
    // What had failed there is still for a person.
    pipe(dir.path(), &["--to", "billing=file:out", "--data", "data"], "").ended_with(3);
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
fn the_other_products_directory_is_refused_with_the_right_word() {
    let dir = tempfile::tempdir().unwrap();
    for (product, source) in
        [("minio", "rustfs/rustfs-webhook-primary"), ("rustfs", "minio/minio-webhook-primary")]
    {
        let right = source.split('/').next().unwrap();
        let source = golden(source).display().to_string();
        let ended = import(dir.path(), &[product, &source, "--data", "data", "--target", "a"]);
        ended.ended_with(2).has(&format!("is not one of {product}")).has(&format!("outhaul import {right} "));
        assert!(!dir.path().join("data").exists());
    }
}

#[test]
fn what_is_left_and_what_had_failed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("rustfs-webhook-x");
    std::fs::create_dir_all(source.join("failed")).unwrap();
    std::fs::create_dir(source.join("inner")).unwrap();
    std::os::unix::fs::symlink("/nowhere", source.join("link.event")).unwrap();
    let golden = golden("rustfs/rustfs-webhook-primary/failed");
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, source.join("failed").join(path.file_name().unwrap())).unwrap();
    }
    let ended = import(dir.path(), &["rustfs", "rustfs-webhook-x", "--data", "data", "--target", "a"]);
    for told in [
        "no entry, and is left: inner (a directory",
        "no entry, and is left: link.event (",
        "1 entry is in the failed store of a",
    ] {
        assert!(ended.ended_with(0).stdout.contains(told), "{told}: {}", ended.stdout);
    }
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
