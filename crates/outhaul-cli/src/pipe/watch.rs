//! [`Watch`]: waiting, while signals, deadlines, a broken store and the person in front of it are minded.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use outhaul::store::StoreError;
use outhaul::{Outhaul, State, TargetStatus};
use tokio::time::{Instant, sleep_until};

use super::summary::Summary;
use crate::console::Console;
use crate::signals::Signals;

/// How often the bar moves and the store is asked for its health.
const LOOK: Duration = Duration::from_millis(250);
/// How often a person is told what is waited for.
const TELL: Duration = Duration::from_secs(30);

/// Why something was not waited for to its end.
#[derive(Debug)]
pub(crate) enum Cut {
    /// By a signal.
    Interrupted,
    /// By the deadline.
    TimedOut,
    /// The store writes nothing any more.
    Broken(StoreError),
}

/// What is minded while waiting.
pub(crate) struct Watch {
    pub(crate) outhaul: Outhaul,
    pub(crate) console: Console,
    pub(crate) signals: Signals,
    /// Entries that will have left the queues when all is done, once that is known.
    pub(crate) total: Option<u64>,
}

impl Watch {
    /// Waits for `future`. `told`: say every 30 seconds what is waited for.
    pub(crate) async fn until<F: Future>(
        &mut self,
        future: F,
        deadline: Option<Instant>,
        told: bool,
        summary: &mut Summary,
    ) -> Result<F::Output, Cut> {
        let mut future = pin!(future);
        let (outhaul, console) = (self.outhaul.clone(), self.console.clone());
        let mut tell = Instant::now() + TELL;
        let never = Instant::now() + Duration::from_secs(86_400 * 365);
        let mut stop = pin!(self.signals.stop());
        loop {
            let look = Instant::now() + LOOK;
            tokio::select! {
                biased;
                () = &mut stop => return Err(Cut::Interrupted),
                output = &mut future => return Ok(output),
                () = sleep_until(deadline.unwrap_or(never)), if deadline.is_some() => return Err(Cut::TimedOut),
                () = sleep_until(look) => {}
            }
            if let Some(failure) = outhaul.failure() {
                return Err(Cut::Broken(failure));
            }
            let targets = outhaul.targets();
            summary.look_at(&targets);
            show(&console, summary, self.total);
            if told && Instant::now() >= tell {
                console.say(format_args!("waiting for {}", describe(&targets)));
                tell = Instant::now() + TELL;
            }
        }
    }
}

fn show(console: &Console, summary: &Summary, total: Option<u64>) {
    let Summary { read, delivered, retried, failed, waiting, .. } = summary;
    let message = format!(
        "read {read} · delivered {delivered} · waiting {waiting} · retried {retried} · failed {failed}"
    );
    console.progress(delivered + failed, total, message);
}

/// What waits, per target, and why.
pub(crate) fn describe(targets: &[TargetStatus]) -> String {
    let each = targets.iter().filter(|target| target.waiting > 0).map(|target| {
        let entries = if target.waiting == 1 { "entry" } else { "entries" };
        let why = match (target.state, &target.last_error) {
            (State::Orphan, _) => " (an orphan: no target of this name was given)".to_owned(),
            (_, Some(error)) => format!(" ({}: {error})", target.reason),
            (_, None) => String::new(),
        };
        format!("{}: {} {entries}{why}", target.name, target.waiting)
    });
    each.collect::<Vec<_>>().join("; ")
}
