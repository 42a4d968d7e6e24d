//! The signals that a verb listens to.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, Exit};

/// The signals that stop: SIGINT and SIGTERM, and SIGHUP where it means nothing else.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, CliError> {
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())?, hangup: None })
    }

    /// With SIGHUP, unless whoever started this wants it to be ignored, as `nohup` does.
    pub(crate) fn with_hangup() -> Result<Self, CliError> {
        let hangup = (!is_hangup_ignored()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self { hangup, ..Self::new()? })
    }

    /// Resolves at the next of them. Dropping it loses none.
    pub(crate) async fn stop(&mut self) {
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
    let error =
        |e: std::io::Error| CliError::new(Exit::Failed, "cannot listen to signals").because(e.to_string());
    signal(kind).map_err(error)
}
