//! Commands that are wrong: one readable block, and code 2.

use std::path::Path;
use std::process::Stdio;

use crate::support::{Ended, Running, program};

fn outhaul(dir: &Path, args: &[&str]) -> Ended {
    Running::start(program().args(args).current_dir(dir).stdin(Stdio::null())).end()
}

#[test]
fn wrong_commands_are_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    std::fs::write(dir.path().join("two"), "file:a\nfile:b\n").unwrap();
    for (args, told) in [
        (&["pipe"][..], &["--to stdout:"][..]),
        (&["run"], &["outhaul run --data ./outhaul-data --to stdout:"]),
        (&["run", "--to", "file:x"], &["outhaul run --data ./outhaul-data --to file:x"]),
        (&["pipe", "--to", "nothing"], &["does not begin with a scheme"]),
        (&["pipe", "--to", "ftp://h/"], &["the scheme \"ftp\" is not known", "file:PATH"]),
        (&["pipe", "--to", "Big=file:x"], &["is no target name"]),
        (&["pipe", "--to", "file:x?outhaul.timeout=0s"], &["outhaul.timeout", "above zero"]),
        (&["pipe", "--to", "file:x?outhaul.nope=1"], &["outhaul.nope", "on_exhausted"]),
        (&["pipe", "--to", "file:x?outhaul.batch=1&outhaul.batch=2"], &["given twice"]),
        (&["pipe", "--to", "file:x", "--to", "file:y"], &["--to file-1=file:x", "--to file-2=file:y"]),
        (
            &["pipe", "--to", "http://h/", "--to", "https://me:pw@h/"],
            &["--to webhook-2=@FILE", "https://***@h/"],
        ),
        (&["pipe", "--to", "a=file:x", "--to", "a=file:y"], &["two targets are named a"]),
        (&["pipe", "--to", "file=file:x", "--to", "file:y"], &["two targets are named file"]),
        (&["pipe", "--to", "@nowhere"], &["cannot read the file nowhere"]),
        (&["pipe", "--to", "@empty"], &["holds no URI"]),
        (&["pipe", "--to", "a=@two"], &["several lines"]),
        (&["pipe", "--to", "file:x", "--repoint", "NO"], &["is no target name"]),
        (&["pipe", "--to", "file:x", "--timeout", "0s"], &["--timeout", "5m"]),
        (&["pipe", "--to", "file:x", "--summary", "xml"], &["text, json"]),
        (&["pipe", "--to", "file:x", "--pid-field", ""], &["--pid-field"]),
        (&["pipe", "--to", "file:x", "--frobnicate"], &["--frobnicate"]),
        (&["run", "--to", "file:x", "--data", "d", "--listen", "nonsense"], &["127.0.0.1:7070"]),
        (&["run", "--to", "file:x", "--data", "d", "--listen", "127.0.0.1:99999"], &["65535"]),
        (&["run", "--to", "file:x", "--data", "d", "--listen", "0.0.0.0:0"], &["--token-file", "--no-token"]),
        (&["run", "--to", "file:x", "--data", "d", "--listen", "[::]:0"], &["--token-file"]),
        (&["run", "--to", "file:x", "--data", "d", "--token-file", "nowhere"], &["the token cannot be read"]),
        (&["run", "--to", "file:x", "--data", "d", "--token-file", "empty"], &["it is empty"]),
        (&["pipe", "--to", "file:x?outhaul.failed_compat=minio"], &["outhaul.failed_compat", "rustfs"]),
        (&["failed", "ls"], &["--data"]),
        (&["failed", "requeue", "--data", "d"], &["UID"]),
        (&["failed", "discard", "--data", "d"], &["UID"]),
        (&["failed", "discard", "--data", "d", "--all", "a:1"], &["cannot be used with"]),
        (&["failed", "discard", "--data", "d", "--older-than", "30"], &["--older-than", "5m"]),
        (&["failed", "ls", "--data", "d", "--limit", "0"], &["--limit"]),
        (&["queue"], &["Usage"]),
        (&["queue", "stat"], &["--data"]),
        (&["queue", "show", "--data", "d"], &["UID"]),
        (&["queue", "show", "--data", "d", "nonsense"], &["no entry's uid"]),
        (&["pipe", "--to", "file:x", "--engine", "paper"], &["no such engine", "journal, "]),
        (&["pipe", "--to", "file:x", "--durability", "none"], &["synced, buffered", "interval:50ms"]),
        (&["run", "--to", "file:x", "--durability", "interval:0s"], &["interval:0s", "above zero"]),
        (
            &["pipe", "--to", "file:x", "--engine", "memory", "--data", "d"],
            &["no data directory", "leave out `--data`"],
        ),
        (&["run", "--to", "file:x", "--engine", "memory", "--data", "d"], &["no data directory"]),
        (&["pipe", "--to", "file:x?outhaul.queue_entries=0"], &["outhaul.queue_entries", "above zero"]),
        (&["pipe", "--to", "file:x?outhaul.failed_entries=0"], &["outhaul.failed_entries", "above zero"]),
        (&["pipe", "--to", "file:x?outhaul.failed_full=drop"], &["hold_target, discard_oldest"]),
        (&["frobnicate"], &["frobnicate"]),
        (&[], &["Usage"]),
    ] {
        let ended = outhaul(dir.path(), args);
        ended.ended_with(2);
        for text in told {
            ended.has(text);
        }
        assert!(!ended.stderr.contains("pw@"), "{}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing was made: {left:?}");
}

#[test]
fn help_and_version_go_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let version = outhaul(dir.path(), &["--version"]);
    assert_eq!(version.ended_with(0).stdout, format!("outhaul {}\n", env!("CARGO_PKG_VERSION")));
    let verbs: [&[&str]; 16] = [
        &[],
        &["pipe"],
        &["run"],
        &["failed"],
        &["failed", "ls"],
        &["failed", "show"],
        &["failed", "requeue"],
        &["failed", "discard"],
        &["failed", "export"],
        &["queue"],
        &["queue", "stat"],
        &["queue", "ls"],
        &["queue", "show"],
        &["queue", "verify"],
        &["queue", "repair"],
        &["queue", "export"],
    ];
    for verb in verbs {
        let help = outhaul(dir.path(), &[verb, &["--help"]].concat());
        assert!(help.ended_with(0).stdout.contains("Example"), "{verb:?}");
        assert_eq!(help.stderr, "");
    }
}

#[test]
fn a_name_may_stand_before_a_file_that_holds_the_uri() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("uri"), "file:a\n").unwrap();
    let ended = crate::support::pipe(dir.path(), &["--to", "a=@uri", "--to", "file:b=c"], "1\n");
    assert_eq!(ended.ended_with(0).summary().delivered, 2);
    assert!(dir.path().join("a").exists() && dir.path().join("b=c").exists());
}

#[test]
fn a_data_directory_that_is_none_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("afile"), "").unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
    for data in ["afile", "dangling"] {
        for verb in [&["pipe", "--to", "file:x"][..], &["run", "--to", "file:x"], &["failed", "ls"]] {
            let ended = outhaul(dir.path(), &[verb, &["--data", data]].concat());
            ended.ended_with(2).has(&format!("{data} is not a directory")).has("help:");
        }
    }
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn a_command_that_is_shown_never_holds_blanked_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let uri = "http://me:pw@127.0.0.1:1/?token=secret";
    for (to, shown) in [(format!("billing={uri}"), "--to billing=@FILE"), (uri.to_owned(), "--to @FILE")] {
        let args = ["--to", &to, "--data", "data", "--timeout", "100ms"];
        let ended = crate::support::pipe(dir.path(), &args, "1\n");
        ended.ended_with(4).has(&format!("outhaul pipe --data data {shown} < /dev/null"));
        ended.has("FILE is a file that holds the URI");
        let command = ended.stderr.lines().find(|line| line.starts_with("outhaul pipe")).unwrap();
        assert!(!command.contains("***") && !ended.stderr.contains("secret"), "{}", ended.stderr);
        std::fs::remove_dir_all(dir.path().join("data")).unwrap();
        let ended = outhaul(dir.path(), &["run", "--to", &to]);
        ended.ended_with(2).has(&format!("outhaul run --data ./outhaul-data {shown}"));
        assert!(!ended.stderr.contains("***"), "{}", ended.stderr);
    }
}

#[test]
fn a_token_in_a_query_that_changed_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let to = |token: &str| format!("hook=http://127.0.0.1:1/?token={token}");
    let run = |token: &str, input: &str| {
        let args = ["--data", "data", "--timeout", "100ms", "--to", &to(token)];
        crate::support::pipe(dir.path(), &args, input)
    };
    run("first-secret", "1\n").ended_with(4);
    let ended = run("second-secret", "");
    ended.ended_with(2).has("1 entry was admitted").has("`--repoint hook`").has("if only a token changed");
    assert!(!ended.stderr.contains("-secret"), "{}", ended.stderr);
}
