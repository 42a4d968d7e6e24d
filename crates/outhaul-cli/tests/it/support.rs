//! Running the program, and talking HTTP to it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No test waits longer for anything.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outhaul"));
    command.env_remove("OUTHAUL_LOG");
    command
}

pub(crate) fn orders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/orders.ndjson")
}

/// Asks again and again until something is there.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(start.elapsed() < LONG, "{what} takes too long");
        // bounded: by LONG
        thread::sleep(Duration::from_millis(5));
    }
}

/// A running program.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<()>>,
    told: Arc<Mutex<String>>,
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let err = child.stderr.take().unwrap();
        let stdout = thread::spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let told = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&told);
        let stderr = thread::spawn(move || {
            for line in BufReader::new(err).lines() {
                let mut heard = heard.lock().unwrap();
                heard.push_str(&line.unwrap());
                heard.push('\n');
            }
        });
        Self { child, stdout: Some(stdout), stderr: Some(stderr), told }
    }

    pub(crate) fn stderr(&self) -> String {
        self.told.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let status: ExitStatus = until("the end of the program", || self.child.try_wait().unwrap());
        let stdout = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        Ended { code: status.code(), stdout: String::from_utf8(stdout).unwrap(), stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that fails leaves nothing running; one that does not has ended it before.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap_or_default();
            self.child.wait().map(drop).unwrap_or_default();
        }
    }
}

impl Ended {
    /// The last line on standard error, key by key.
    pub(crate) fn summary(&self) -> Summary {
        let line = self.stderr.lines().last().unwrap_or_default();
        let keys: Vec<_> = line.split(' ').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        let names: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
        let expected = ["read", "skipped", "durable", "delivered", "retried", "failed", "waiting", "seconds"];
        assert_eq!(names, expected, "{}", self.stderr);
        let number = |i: usize| keys[i].1.parse::<u64>().unwrap();
        assert!(keys[7].1.parse::<f64>().unwrap() >= 0.0);
        Summary {
            read: number(0),
            skipped: number(1),
            durable: number(2),
            delivered: number(3),
            retried: number(4),
            failed: number(5),
            waiting: number(6),
        }
    }

    pub(crate) fn has(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "{text:?} is not in:\n{}", self.stderr);
        self
    }

    pub(crate) fn ended_with(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for word in ["panicked", "RUST_BACKTRACE", "Err(", "Some(", "StoreError", "fault in outhaul"] {
            assert!(!self.stderr.contains(word), "{word:?} is for programmers:\n{}", self.stderr);
        }
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) read: u64,
    pub(crate) skipped: u64,
    pub(crate) durable: u64,
    pub(crate) delivered: u64,
    pub(crate) retried: u64,
    pub(crate) failed: u64,
    pub(crate) waiting: u64,
}

/// Runs `outhaul pipe` over an input, in a directory.
pub(crate) fn pipe(dir: &Path, args: &[&str], input: impl Into<Vec<u8>>) -> Ended {
    let input = input.into();
    let mut running = start_pipe(dir, args);
    let mut stdin = running.child.stdin.take().unwrap();
    // The program may end before it has read everything.
    let writer = thread::spawn(move || stdin.write_all(&input).unwrap_or_default());
    let ended = running.end();
    writer.join().unwrap();
    ended
}

pub(crate) fn start_pipe(dir: &Path, args: &[&str]) -> Running {
    let temp = dir.join("temporary");
    std::fs::create_dir_all(&temp).unwrap();
    let mut command = program();
    command.arg("pipe").args(args).current_dir(dir).env("TMPDIR", temp).stdin(Stdio::piped());
    Running::start(&mut command)
}

/// What is left in the directory for temporary files of [`pipe`].
pub(crate) fn temporary(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir.join("temporary")).unwrap();
    found.map(|entry| entry.unwrap().path()).collect()
}

/// The lines of a file of JSON values.
pub(crate) fn values(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn ids(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["id"].as_str().unwrap()).collect()
}

/// The segment of a data directory's journal that holds some bytes.
pub(crate) fn segment_with(data: &Path, needle: &[u8]) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(data.join("log")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let holds = |path: &PathBuf| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|part| part == needle))
    };
    files.find(holds)
}

/// A CloudEvents line.
pub(crate) fn event(id: &str, pid: &str) -> String {
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"/test\",\"type\":\"t\",\"partitionkey\":\"{pid}\",\
         \"data\":{{\"id\":\"{id}\"}}}}\n"
    )
}

/// A relay that listens.
pub(crate) struct Relay {
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
}

impl Relay {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = program();
        command.args(["run", "--data", "data", "--listen", "127.0.0.1:0"]).args(args).current_dir(dir);
        if !args.contains(&"--admin") {
            // Tests run side by side.
            command.args(["--admin", "off"]);
        }
        let mut running = Running::start(command.stdin(Stdio::null()));
        let address = until("the relay's start", || {
            let told = running.stderr();
            assert!(running.child.try_wait().unwrap().is_none(), "the relay ended: {told}");
            let line = told.lines().find_map(|line| line.strip_prefix("listening on http://"))?;
            Some(line.parse().unwrap())
        });
        Self { running, address }
    }

    pub(crate) fn post(&self, content_type: &str, body: impl AsRef<[u8]>) -> Reply {
        request(self.address, "POST", "/events", &[("content-type", content_type)], body.as_ref()).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        request(self.address, "GET", path, &[], b"").unwrap()
    }

    /// The status of a target.
    pub(crate) fn target(&self, name: &str) -> Value {
        let targets = self.get("/targets").json();
        let found = targets["targets"].as_array().unwrap().iter().find(|target| target["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {targets}")).clone()
    }

    pub(crate) fn stop(self) -> Ended {
        self.running.signal(Signal::TERM);
        self.running.end()
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {:?}", self.body.escape_ascii().to_string()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Checks that it is a problem, and returns it.
    pub(crate) fn problem(&self, status: u16, reason: &str) -> Value {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{body}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{body}");
        let problem = self.json();
        assert_eq!(
            (problem["status"].as_u64(), &problem["reason"]),
            (Some(status.into()), &Value::from(reason))
        );
        assert!(["type", "title", "detail"].iter().all(|key| problem[key].is_string()), "{problem}");
        problem
    }
}

/// One request on a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.set_write_timeout(Some(LONG))?;
    stream.write_all(&[head.as_bytes(), body].concat())?;
    read_reply(&mut stream)
}

/// Reads an answer after which the connection is closed.
pub(crate) fn read_reply(stream: &mut TcpStream) -> std::io::Result<Reply> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let broken = || std::io::Error::other("no whole answer");
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(broken)?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let body = bytes[end + 4..].to_vec();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    match length.map(|(_, length)| length.parse::<usize>()) {
        Some(Ok(length)) if length != body.len() => Err(broken()),
        _ => Ok(Reply { status, headers, body }),
    }
}
