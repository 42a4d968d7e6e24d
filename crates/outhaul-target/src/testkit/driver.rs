//! A small stand-in for the runtime: lanes, and tries until everything is delivered.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future::join_all;

use crate::contract::{Attempt, BatchOrder, Target};
use crate::error::{DeliveryError, Verdict};

type Lanes = BTreeMap<String, VecDeque<Attempt>>;

/// Events of one pid that a round takes from a `Prefix` target's lane.
const PREFIX_LENGTH: usize = 3;

/// Delivers everything, in order per pid, and returns how many attempts failed.
pub(super) async fn deliver_all(target: &impl Target, attempts: Vec<Attempt>) -> usize {
    const ROUNDS_MAX: usize = 5_000;
    let capabilities = target.capabilities();
    let prefix = capabilities.batch_order == BatchOrder::Prefix;
    let mut lanes = Lanes::new();
    for attempt in attempts {
        lanes.entry(attempt.event.pid().unwrap_or_default().to_owned()).or_default().push_back(attempt);
    }
    let mut failures = 0;
    for _ in 0..ROUNDS_MAX {
        lanes.retain(|_, lane| !lane.is_empty());
        if lanes.is_empty() {
            return failures;
        }
        let depth = if prefix { PREFIX_LENGTH } else { 1 };
        let round: Vec<Attempt> = lanes.values().flat_map(|lane| lane.iter().take(depth).cloned()).collect();
        let results = if prefix {
            one_after_the_other(target, &round, capabilities.batch_max).await
        } else {
            // At most one event of a pid is in the round, so that its batches may overtake each other.
            join_all(round.chunks(capabilities.batch_max).map(|batch| target.deliver(batch)))
                .await
                .concat_results()
        };
        failures += settle(&mut lanes, &round, results, prefix);
    }
    panic!("after {ROUNDS_MAX} rounds there is still work: {} lanes", lanes.len());
}

/// An event of a pid is not sent while an earlier one may still fail.
async fn one_after_the_other(target: &impl Target, round: &[Attempt], max: usize) -> Vec<Outcome> {
    let mut results: Vec<Outcome> = Vec::new();
    for batch in round.chunks(max) {
        let blocked = batch.first().is_some_and(|first| {
            let failed = |(attempt, result): (&Attempt, &Outcome)| {
                attempt.event.pid() == first.event.pid() && !matches!(result, Some(Ok(())))
            };
            round.iter().zip(&results).any(failed)
        });
        if blocked {
            results.extend(batch.iter().map(|_| None));
        } else {
            results.extend(target.deliver(batch).await.into_iter().map(Some));
        }
    }
    results
}

/// None: not sent.
type Outcome = Option<Result<(), DeliveryError>>;

trait ConcatResults {
    fn concat_results(self) -> Vec<Outcome>;
}

impl ConcatResults for Vec<Vec<Result<(), DeliveryError>>> {
    fn concat_results(self) -> Vec<Outcome> {
        self.into_iter().flatten().map(Some).collect()
    }
}

fn settle(lanes: &mut Lanes, round: &[Attempt], results: Vec<Outcome>, prefix: bool) -> usize {
    assert_eq!(results.len(), round.len(), "`deliver` returns one result per event");
    let mut failures = 0;
    let mut failed_pid = None;
    for (attempt, result) in round.iter().zip(results) {
        let pid = attempt.event.pid().unwrap_or_default();
        let lane = lanes.get_mut(pid).expect("the attempt came from a lane");
        match result {
            None => {}
            Some(Ok(())) => {
                let broken = prefix && failed_pid == Some(pid);
                assert!(!broken, "`Prefix`: an event of {pid} was delivered behind one that was not");
                lane.pop_front();
            }
            Some(Err(error)) => {
                assert_ne!(error.verdict(), Verdict::Reject, "no event is to be rejected here: {error:?}");
                failures += 1;
                failed_pid = Some(pid);
                if let Some(same) = lane.iter_mut().find(|waiting| waiting.uid == attempt.uid) {
                    same.number += 1;
                }
            }
        }
    }
    failures
}
