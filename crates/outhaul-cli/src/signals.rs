//! The signals that a verb listens to.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, Exit};

/// SIGINT and SIGTERM, and SIGHUP where it means something.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, CliError> {
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Resolves at the next SIGINT or SIGTERM. Dropping it loses none.
    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Listens to one signal, which from now on does nothing by itself.
pub(crate) fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    let error =
        |e: std::io::Error| CliError::new(Exit::Failed, "cannot listen to signals").because(e.to_string());
    signal(kind).map_err(error)
}
