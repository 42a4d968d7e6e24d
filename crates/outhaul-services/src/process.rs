//! Child processes that end with whoever started them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A process, told apart from a later one that got its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: i32,
    /// When it began, in the kernel's ticks since the machine started.
    pub started: u64,
}

impl Identity {
    fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: stat(pid)?.1 })
    }

    /// Whether it still runs.
    pub fn is_running(self) -> bool {
        stat(self.pid).is_some_and(|(_, started)| started == self.started)
    }
}

/// Ends these process groups, gently at first, and returns when they are gone.
pub fn end_all(identities: &[Identity]) {
    let running = || identities.iter().filter(|identity| identity.is_running());
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        running().for_each(|identity| send_group(identity.pid, signal));
        let until = Instant::now() + Duration::from_secs(10);
        while running().next().is_some() && Instant::now() < until {
            pause();
        }
    }
}

/// One process of a server, with a process group of its own.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Ends the group and removes the directory when this process of ours ends without having done so.
    watchdog: Option<Child>,
}

impl Process {
    /// Starts it; what it writes goes to the end of the log. `dies_with_us` is the directory that goes with it.
    pub(crate) fn start(
        mut command: Command,
        log: &Path,
        dies_with_us: Option<&Path>,
    ) -> Result<Self, Error> {
        let file = |source| Error::File { path: log.to_owned(), source };
        let out = File::options().create(true).append(true).open(log).map_err(file)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let fail =
            |error: std::io::Error| Error::Command { command: program.clone(), output: error.to_string() };
        command.stdin(Stdio::null()).stderr(out.try_clone().map_err(file)?).stdout(out).process_group(0);
        let child = command.spawn().map_err(fail)?;
        let mut process = Self { child, watchdog: None };
        if let Some(directory) = dies_with_us {
            let mut watchdog = Command::new("sh");
            // It reads until the pipe's other end is closed, which the kernel does however we end.
            watchdog.args(["-c", r#"cat >/dev/null; kill -s KILL -- "-$0"; rm -rf -- "$1""#]);
            watchdog.arg(process.child.id().to_string()).arg(directory);
            watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            process.watchdog = Some(watchdog.spawn().map_err(fail)?);
        }
        Ok(process)
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        Identity::of(i32::try_from(self.child.id()).ok()?)
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Sends a signal to it and to everything below it.
    pub(crate) fn signal(&self, signal: Signal) {
        let Ok(root) = i32::try_from(self.child.id()) else { return };
        for pid in descendants(root) {
            send(pid, signal);
        }
        send_group(root, signal);
    }

    /// Sends a signal to it alone.
    pub(crate) fn signal_one(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            send(pid, signal);
        }
    }

    /// Asks it to end by `signal`, kills it after the time, and returns when it is gone.
    pub(crate) fn end(mut self, signal: Signal, grace: Duration) {
        self.signal_one(signal);
        let until = Instant::now() + grace;
        while self.ended().is_none() && Instant::now() < until {
            pause();
        }
        self.kill();
    }

    /// Kills it and everything below it, and returns when it is gone.
    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    /// Leaves it running, whatever becomes of us.
    pub(crate) fn leave(mut self) {
        self.stop_watchdog();
        std::mem::forget(self);
    }

    fn kill_now(&mut self) {
        // Before the group is gone, so that it never meets another group of that number.
        self.stop_watchdog();
        self.signal(Signal::KILL);
        // It was killed: nothing is left to be told but its status.
        drop(self.child.wait());
    }

    fn stop_watchdog(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.kill());
            drop(watchdog.wait());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_now();
    }
}

/// Between two looks at something outside that tells nobody when it changes.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended by itself.
        _ = kill_process(pid, signal);
    }
}

fn send_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        _ = kill_process_group(pid, signal);
    }
}

/// Everything below a process, itself included: some servers give their children groups of their own.
fn descendants(root: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, stat(pid)?.0))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// The parent of a process and when it began; none of one that is gone or was not waited for.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    (state != "Z").then_some((parent, started))
}
