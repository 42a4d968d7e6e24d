//! A busy loop on every core, in processes of their own so that their time is not counted as the case's.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// The argument that makes a program a busy loop.
pub(crate) const COMMAND: &str = "busy-loop";

/// A loop that ends with the value.
pub(crate) struct Busy(Child);

pub(crate) fn on_every_core() -> Result<Vec<Busy>> {
    let program = std::env::current_exe()?;
    let start = |_| {
        let child = Command::new(&program).arg(COMMAND).stdin(Stdio::piped()).spawn();
        child.map(Busy).context("cannot start a busy loop")
    };
    (0..std::thread::available_parallelism()?.get()).map(start).collect()
}

/// Spins until standard input ends, which it does when the parent is gone, whatever ended it.
pub(crate) fn spin() {
    let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !input.is_finished() {
        std::hint::spin_loop();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("a busy loop is left: {error}");
        }
    }
}
