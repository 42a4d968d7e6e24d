//! How a run ends: the data directory is closed, and what is left is named.

use std::time::Duration;

use outhaul::State;

use super::super::data::DataDir;
use super::super::watch::{Cut, describe};
use super::{Halt, Session};
use crate::console::{counted, quoted};
use crate::error::{CliError, Exit};
use crate::targets::{self, To};

/// How long attempts in flight may take when somebody waits for the end.
const DRAIN_SHORT: Duration = Duration::from_secs(5);

impl Session {
    /// Says why it goes no further.
    pub(super) fn halted(&mut self, halt: Halt) -> Exit {
        let console = &self.watch.console;
        match halt {
            Halt::Error(error) | Halt::BadEvent(error) => console.fail(&error),
            Halt::Cut(Cut::Broken(failure)) => console.fail(&failure.into()),
            Halt::Cut(Cut::TimedOut) => {
                let waited = self.timeout.unwrap_or_default();
                console.say(format_args!(
                    "the time for deliveries ({waited:?}) is over: attempts under way may end"
                ));
                // Whether entries are left shows when those have ended; the rest of the input is left for certain.
                if self.input_ended { Exit::Done } else { Exit::Left }
            }
            Halt::Cut(Cut::OutputGone) => {
                console.say("nobody reads standard output any more");
                Exit::Left
            }
            Halt::Cut(Cut::Interrupted) => {
                console.say("interrupted: attempts under way may end; a second signal ends it at once");
                Exit::Interrupted
            }
        }
    }

    /// Stops in order. A second signal ends it at once.
    pub(super) async fn close(&mut self, exit: Exit) -> Exit {
        let drain = DRAIN_SHORT.min(self.watch.outhaul.longest_deadline());
        self.fed.close();
        let outhaul = self.watch.outhaul.clone();
        let closed = tokio::select! {
            closed = outhaul.shutdown(drain) => closed,
            () = self.watch.signals.stop() => {
                self.summary.look_at(&outhaul.targets());
                // The process ends next. What would be told about parts that nobody closed is nobody's business.
                std::mem::forget(outhaul);
                return Exit::Interrupted;
            }
        };
        let broken = outhaul.failure().is_some();
        let exit = match closed {
            Ok(_) => Exit::Done,
            // It was told before.
            Err(_) if broken && exit == Exit::Failed => Exit::Failed,
            Err(error) => self.watch.console.fail(&CliError::from(error)),
        };
        self.summary.look_at(&outhaul.targets());
        exit
    }

    /// Names what is left, and decides what the shell is told.
    pub(crate) fn conclude(&self, mut exit: Exit, data: &DataDir, to: &[To]) -> Exit {
        let (outhaul, console) = (&self.watch.outhaul, &self.watch.console);
        console.end_bar();
        let shown = data.path().display();
        let copied = quoted(&shown.to_string());
        for (target, count) in &self.shed {
            console.say(format_args!(
                "{target}: {} missed it, because its queue was full",
                counted(*count, "event", "events")
            ));
        }
        let damaged = console.tell_damage(&outhaul.report(), &shown.to_string());
        if damaged {
            exit = exit.and(Exit::Attention);
        }
        let failed = outhaul.failed().count(None);
        if failed > 0 {
            let events = counted(failed, "event is", "events are");
            match data.is_in_memory() {
                true => {
                    console.say(format_args!("{events} in the failed store, which was in memory, and gone"))
                }
                false => {
                    console.say(format_args!("{events} in the failed store; to see why:"));
                    console.say(format_args!("outhaul failed ls --data {copied}"));
                }
            }
            exit = exit.and(Exit::Attention);
        }
        if !self.input_ended && matches!(exit, Exit::Interrupted | Exit::Left) {
            console.say("the input was not read to its end: with the same input and `--data` it goes on");
        }
        exit = exit.and(match data.is_in_memory() {
            true => self.name_lost(),
            false => self.name_waiting(&copied, to),
        });
        if failed == 0 && self.summary.waiting == 0 && !damaged {
            data.remove_if_new(console);
        } else if data.is_new() {
            console.say(format_args!("the data directory is kept: {shown}"));
        }
        exit
    }

    /// What waits in memory is gone with the process.
    fn name_lost(&self) -> Exit {
        if self.summary.waiting == 0 {
            return Exit::Done;
        }
        let targets = self.watch.outhaul.targets();
        self.watch
            .console
            .say(format_args!("not delivered, and gone with the memory: {}", describe(&targets)));
        Exit::Left
    }

    fn name_waiting(&self, data: &str, to: &[To]) -> Exit {
        if self.summary.waiting == 0 {
            return Exit::Done;
        }
        let console = &self.watch.console;
        let targets = self.watch.outhaul.targets();
        console.say(format_args!("left in {data}: {}", describe(&targets)));
        let (orphans, attached): (Vec<_>, Vec<_>) =
            targets.iter().filter(|t| t.waiting > 0).partition(|t| t.state == State::Orphan);
        for orphan in orphans {
            console.say(format_args!("to deliver what waits for {0}, add `--to {0}=URI`", orphan.name));
        }
        if !attached.is_empty() {
            let (arguments, note) = (targets::arguments(to), targets::note(to));
            console.say(format_args!(
                "to deliver it:\nouthaul pipe --data {data} {arguments} < /dev/null{note}"
            ));
        }
        Exit::Left
    }
}
