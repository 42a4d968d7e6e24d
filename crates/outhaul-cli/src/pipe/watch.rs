//! [`Watch`]: waiting, while signals, deadlines, a broken store and the person in front of it are minded.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use outhaul::store::StoreError;
use outhaul::{Outhaul, State, TargetStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::{Instant, sleep_until};

use super::summary::Summary;
use crate::console::{Console, counted};
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
    /// Nobody reads standard output, and all that is left would go there.
    OutputGone,
}

/// What is minded while waiting.
pub(crate) struct Watch {
    pub(crate) outhaul: Outhaul,
    pub(crate) console: Console,
    pub(crate) signals: Signals,
    /// Entries that will have left the queues when all is done, once that is known.
    pub(crate) total: Option<u64>,
    /// When to look next.
    look: Instant,
}

impl Watch {
    pub(crate) fn new(outhaul: Outhaul, console: Console, signals: Signals) -> Self {
        Self { outhaul, console, signals, total: None, look: Instant::now() }
    }

    /// Waits for `future`. `told`: say every 30 seconds what is waited for.
    pub(crate) async fn until<F: Future>(
        &mut self,
        future: F,
        deadline: Option<Instant>,
        told: bool,
        summary: &mut Summary,
    ) -> Result<F::Output, Cut> {
        let mut future = pin!(future);
        let mut tell = Instant::now() + TELL;
        loop {
            if Instant::now() >= self.look {
                let targets = self.look(summary)?;
                if told && Instant::now() >= tell {
                    self.console.say(format_args!("waiting for {}", describe(&targets)));
                    tell = Instant::now() + TELL;
                }
            }
            tokio::select! {
                biased;
                () = self.signals.stop() => return Err(Cut::Interrupted),
                output = &mut future => return Ok(output),
                () = sleep_until(deadline.unwrap_or(self.look)), if deadline.is_some() => return Err(Cut::TimedOut),
                () = sleep_until(self.look) => {}
            }
        }
    }

    /// Looks at the store, at the targets and at standard output, and moves the bar.
    fn look(&mut self, summary: &mut Summary) -> Result<Vec<TargetStatus>, Cut> {
        self.look = Instant::now() + LOOK;
        if let Some(failure) = self.outhaul.failure() {
            return Err(Cut::Broken(failure));
        }
        let targets = self.outhaul.targets();
        summary.look_at(&targets);
        show(&self.console, summary, self.total);
        let mut left = targets.iter().filter(|target| {
            // While there is input, every target may get some of it.
            target.state != State::Orphan && (target.waiting > 0 || self.total.is_none())
        });
        if left.all(|target| target.kind == "stdout") && summary.waiting > 0 && output_is_gone() {
            return Err(Cut::OutputGone);
        }
        Ok(targets)
    }
}

/// Whether standard output is a pipe or socket that nobody reads any more.
fn output_is_gone() -> bool {
    let output = std::io::stdout();
    let mut fds = [PollFd::new(&output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
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
        let why = match (target.state, &target.last_error) {
            (State::Orphan, _) => " (an orphan: no target of this name was given)".to_owned(),
            (_, Some(error)) => format!(" ({}: {error})", target.reason),
            (_, None) => String::new(),
        };
        format!("{}: {}{why}", target.name, counted(target.waiting, "entry", "entries"))
    });
    each.collect::<Vec<_>>().join("; ")
}
