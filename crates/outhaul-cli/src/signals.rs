//! The signals that a verb listens to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, Exit};

/// The signals that stop: SIGINT and SIGTERM, and SIGHUP where it means nothing else.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    /// One came while we began to listen.
    early: bool,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, CliError> {
        Self::listening(false)
    }

    /// With SIGHUP, unless whoever started this wants it to be ignored, as `nohup` does.
    pub(crate) fn with_hangup() -> Result<Self, CliError> {
        Self::listening(!is_hangup_ignored())
    }

    /// Tokio takes a signal over before it listens to it, and loses one that comes in between: a flag is set first.
    fn listening(hangup: bool) -> Result<Self, CliError> {
        let seen = Arc::new(AtomicBool::new(false));
        let listen_to = |kind: SignalKind| {
            signal_hook::flag::register(kind.as_raw_value(), Arc::clone(&seen)).map_err(|e| unheard(&e))?;
            listen(kind)
        };
        let hangup = hangup.then(|| listen_to(SignalKind::hangup())).transpose()?;
        let interrupt = listen_to(SignalKind::interrupt())?;
        let terminate = listen_to(SignalKind::terminate())?;
        Ok(Self { interrupt, terminate, hangup, early: seen.load(Ordering::SeqCst) })
    }

    /// Resolves at the next of them. Dropping it loses none.
    pub(crate) async fn stop(&mut self) {
        if std::mem::take(&mut self.early) {
            return;
        }
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(()) = next(&mut self.hangup) => {}
        }
    }
}

async fn next(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => None,
    }
}

/// Asks Linux; elsewhere it is not known, and taken as not ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is the first of all signals.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Listens to one signal, which from now on does nothing by itself.
pub(crate) fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| unheard(&error))
}

fn unheard(error: &std::io::Error) -> CliError {
    CliError::new(Exit::Failed, "cannot listen to signals").because(error.to_string())
}
