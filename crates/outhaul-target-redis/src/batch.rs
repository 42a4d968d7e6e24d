//! Which events of a batch may be in one transaction, so that the rule `Prefix` holds.
//!
//! A transaction of Redis does not roll back: a command that fails while it is executed stops none behind it. Whether
//! one fails then depends on its key alone (its type, who may write it), which nobody else changes meanwhile. So the
//! events of one pid are in one transaction only while they go to the same key: all of them fail, or none. The next
//! key's turn is in a later transaction, once the first one's answer is there.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use outhaul_target::{Attempt, DeliveryError, ErrorKind};

use crate::codec::Command;

type Outcome = Result<(), DeliveryError>;

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    events: &'a [Attempt],
    commands: Vec<Option<Command>>,
    results: Vec<Option<Outcome>>,
}

impl<'a> Batch<'a> {
    /// Makes the commands. Behind an event that cannot be one, none of its pid is.
    pub(crate) fn new(
        events: &'a [Attempt],
        command: impl Fn(&Attempt) -> Result<Command, DeliveryError>,
    ) -> Self {
        let mut batch = Self {
            events,
            commands: vec![None; events.len()],
            results: events.iter().map(|_| None).collect(),
        };
        for (i, attempt) in events.iter().enumerate() {
            if batch.results[i].is_none() {
                match command(attempt) {
                    Ok(command) => batch.commands[i] = Some(command),
                    Err(error) => batch.settle(i, Err(error)),
                }
            }
        }
        batch
    }

    /// What the next transaction may have, in order; nothing is left if it is empty.
    pub(crate) fn round(&self) -> Vec<(usize, &Command)> {
        let mut keys: HashMap<&str, &str> = HashMap::new();
        let mut later: HashSet<&str> = HashSet::new();
        let mut round = Vec::new();
        for (i, attempt) in self.events.iter().enumerate() {
            let (Some(command), None) = (&self.commands[i], &self.results[i]) else { continue };
            if let Some(pid) = attempt.event.pid() {
                let same = match keys.entry(pid) {
                    Entry::Vacant(entry) => *entry.insert(&command.key) == command.key,
                    Entry::Occupied(entry) => *entry.get() == command.key,
                };
                if !same {
                    later.insert(pid);
                }
                if later.contains(pid) {
                    continue;
                }
            }
            round.push((i, command));
        }
        round
    }

    /// Notes what became of an event. Behind one that failed, none of its pid is sent. The first word counts.
    pub(crate) fn settle(&mut self, index: usize, outcome: Outcome) {
        if self.results[index].is_some() {
            return;
        }
        let failed = outcome.is_err();
        self.results[index] = Some(outcome);
        let Some(pid) = self.events[index].event.pid().filter(|_| failed) else { return };
        for (attempt, result) in self.events.iter().zip(&mut self.results).skip(index + 1) {
            if result.is_none() && attempt.event.pid() == Some(pid) {
                *result = Some(Err(ErrorKind::Skipped.into()));
            }
        }
    }

    /// The same failure for everything that is left; the first one has its cause.
    pub(crate) fn fail(&mut self, error: DeliveryError) {
        let (kind, detail) = (error.kind(), error.detail());
        let mut first = Some(error);
        for result in self.results.iter_mut().filter(|result| result.is_none()) {
            let error = first.take().unwrap_or_else(|| DeliveryError::new(kind).with_detail(&*detail));
            *result = Some(Err(error));
        }
    }

    /// What became of each event; one that nobody was told about was not sent.
    pub(crate) fn results(self) -> Vec<Outcome> {
        self.results.into_iter().map(|result| result.unwrap_or(Err(ErrorKind::Skipped.into()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use outhaul_target::outhaul_event::Event;
    use outhaul_target::testkit::attempt;
    use proptest::prelude::*;

    use super::*;

    /// An event of a pid (none, if it is empty) for a key; for the key `!` there is no command.
    fn events(of: &[(&str, &str)]) -> Vec<Attempt> {
        let one = |&(pid, key): &(&str, &str)| {
            let event = Event::builder("t", "/s").subject(key);
            attempt(if pid.is_empty() { event } else { event.pid(pid) }.build().unwrap())
        };
        of.iter().map(one).collect()
    }

    fn command(attempt: &Attempt) -> Result<Command, DeliveryError> {
        match attempt.event.subject() {
            Some("!") => Err(ErrorKind::Malformed.into()),
            key => Ok(Command { key: key.unwrap_or_default().to_owned(), cmd: redis::cmd("PING") }),
        }
    }

    fn round(batch: &Batch<'_>) -> Vec<usize> {
        batch.round().into_iter().map(|(i, _)| i).collect()
    }

    #[test]
    fn a_pid_has_one_key_in_a_transaction() {
        let events =
            events(&[("p", "a"), ("q", "b"), ("p", "a"), ("p", "b"), ("p", "a"), ("", "b"), ("", "a")]);
        let mut batch = Batch::new(&events, command);
        assert_eq!(round(&batch), [0, 1, 2, 5, 6]);
        [0, 1, 2, 5, 6].into_iter().for_each(|i| batch.settle(i, Ok(())));
        assert_eq!(round(&batch), [3]);
        batch.settle(3, Err(ErrorKind::Configuration.into()));
        assert!(round(&batch).is_empty());
        let kinds: Vec<_> = batch.results().into_iter().map(|r| r.map_err(|error| error.kind())).collect();
        let expected =
            [Ok(()), Ok(()), Ok(()), Err(ErrorKind::Configuration), Err(ErrorKind::Skipped), Ok(()), Ok(())];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn nothing_of_a_pid_is_sent_behind_an_event_that_is_no_command() {
        let events = events(&[("p", "a"), ("p", "!"), ("p", "a"), ("q", "a"), ("", "!"), ("", "a")]);
        assert_eq!(round(&Batch::new(&events, command)), [0, 3, 5]);
    }

    proptest! {
        #[test]
        fn the_rule_holds_whichever_keys_fail(
            of in prop::collection::vec((0..4_usize, 0..4_usize), 1..40),
            bad in prop::collection::hash_set(0..4_usize, 0..4),
        ) {
            let (pids, keys) = (["p", "q", "r", ""], ["a", "b", "c", "!"]);
            let named: Vec<_> = of.iter().map(|&(pid, key)| (pids[pid], keys[key])).collect();
            let events = events(&named);
            let mut batch = Batch::new(&events, command);
            let mut stored = Vec::new();
            // bounded: each round settles at least one event.
            for _ in 0..=events.len() {
                for i in round(&batch) {
                    let fails = bad.contains(&of[i].1);
                    if !fails {
                        stored.push(i);
                    }
                    batch.settle(i, if fails { Err(ErrorKind::Configuration.into()) } else { Ok(()) });
                }
            }
            prop_assert!(round(&batch).is_empty());
            let results = batch.results();
            for (i, result) in results.iter().enumerate() {
                prop_assert_eq!(result.is_ok(), stored.contains(&i), "{} is told as it is", i);
                let pid = named[i].0;
                let before = || results[..i].iter().enumerate().filter(|(j, _)| named[*j].0 == pid);
                if !pid.is_empty() && result.is_ok() {
                    prop_assert!(before().all(|(_, result)| result.is_ok()), "{} overtook one", i);
                    prop_assert!(
                        before().all(|(j, _)| stored.iter().position(|s| *s == j) < stored.iter().position(|s| *s == i)),
                        "{} was stored too early", i
                    );
                }
            }
        }
    }
}
