//! What a person may do to an entry, in each of its states.

use std::sync::Arc;
use std::time::Duration;

use outhaul_runtime::event::Uid;
use outhaul_runtime::store::Store;
use outhaul_runtime::target::{ErrorKind, OnReject, TargetOptions};
use outhaul_runtime::{
    EntryAnswer, EntryCursor, EntryInfo, EntryQuery, EntryState, Runtime, State, TargetStatus,
};

use crate::gate::{Gate, Journal, gate_spec, notes};
use crate::support::{
    Checked, Scripted, admit, check_sums, event, name, only, options, pass, send, settled, spec, start_on,
};

fn uid(sequence: u64) -> Uid {
    Uid { queue: name("a"), sequence }
}

/// A wait that no test sits out.
fn slow() -> TargetOptions {
    let long = Duration::from_secs(100_000);
    TargetOptions { backoff: long, backoff_max: long, ..options() }
}

async fn list(runtime: &Runtime, query: EntryQuery) -> Vec<EntryInfo> {
    runtime.entries(&name("a"), &query).await.unwrap().entries
}

async fn states(runtime: &Runtime) -> Vec<(u64, EntryState)> {
    let mut all = list(runtime, EntryQuery::default()).await;
    all.extend(list(runtime, EntryQuery { state: Some(EntryState::Failed), ..Default::default() }).await);
    all.into_iter().map(|entry| (entry.uid.sequence, entry.state)).collect()
}

/// One entry of each state: 1 retries, 2 waits behind it, 3 has failed, 4 is in flight.
async fn every_state(journal: &Journal) -> (Checked, Arc<Gate>) {
    let gate = Arc::new(Gate::new("a", journal));
    let runtime = start_on(Store::memory(), vec![gate_spec("a", &gate, slow())]).await.unwrap();
    gate.answer(Some(ErrorKind::ServerFault));
    admit(&runtime, [event(1, Some("p"))]).await;
    pass(Duration::from_millis(10)).await;
    admit(&runtime, [event(2, Some("p"))]).await;
    gate.answer(Some(ErrorKind::ContentRefused));
    admit(&runtime, [event(3, Some("q"))]).await;
    pass(Duration::from_millis(10)).await;
    gate.answer(None);
    while gate.begun.available_permits() > 0 {
        gate.begun.acquire().await.unwrap().forget();
    }
    gate.hold();
    admit(&runtime, [event(4, Some("r"))]).await;
    gate.one_has_begun().await;
    assert_eq!(
        states(&runtime).await,
        [
            (1, EntryState::Retrying),
            (2, EntryState::Waiting),
            (4, EntryState::InFlight),
            (3, EntryState::Failed)
        ]
    );
    (runtime, gate)
}

fn sums(runtime: &Runtime) -> TargetStatus {
    check_sums(runtime);
    only(runtime)
}

#[tokio::test(start_paused = true)]
async fn discarding_what_waits_or_retries_removes_it_and_its_pid_goes_on() {
    let journal = Journal::default();
    let (runtime, gate) = every_state(&journal).await;
    assert_eq!(runtime.discard(&uid(2)).await.unwrap(), EntryAnswer::Discarded);
    assert_eq!(runtime.discard(&uid(2)).await.unwrap_err().reason(), "not_found");
    admit(&runtime, [event(5, Some("p"))]).await;
    assert_eq!(runtime.discard(&uid(1)).await.unwrap(), EntryAnswer::Discarded);
    gate.let_through(100);
    settled(&runtime).await;
    let mut got = notes(&journal);
    got.retain(|note| note.contains("delivered"));
    got.sort();
    assert_eq!(got, ["a: delivered 4", "a: delivered 5"]);
    assert_eq!(sums(&runtime).discarded, 2);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn discarding_what_is_in_flight_waits_for_its_verdict_and_a_delivery_stands() {
    for delivered in [true, false] {
        let journal = Journal::default();
        let (runtime, gate) = every_state(&journal).await;
        assert_eq!(runtime.discard(&uid(4)).await.unwrap(), EntryAnswer::Pending);
        let (asking, mut tasks) = (runtime.clone(), tokio::task::JoinSet::new());
        tasks.spawn(async move { asking.discard(&uid(4)).await });
        pass(Duration::from_secs(1)).await;
        gate.answer((!delivered).then_some(ErrorKind::ServerFault));
        gate.let_through(1);
        let answer = tasks.join_next().await.unwrap().unwrap().unwrap();
        let expected = if delivered { EntryAnswer::Delivered } else { EntryAnswer::Discarded };
        assert_eq!(answer, expected);
        let status = sums(&runtime);
        assert_eq!((status.delivered, status.discarded), if delivered { (1, 0) } else { (0, 1) });
        pass(Duration::from_secs(200)).await;
        let tries = notes(&journal).iter().filter(|note| note.ends_with(" 4")).count();
        assert_eq!(tries, 1, "it is not tried again");
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn discarding_what_is_rejected_meanwhile_takes_it_out_of_the_failed_store() {
    let journal = Journal::default();
    let (runtime, gate) = every_state(&journal).await;
    let (asking, mut tasks) = (runtime.clone(), tokio::task::JoinSet::new());
    tasks.spawn(async move { asking.discard(&uid(4)).await });
    pass(Duration::from_secs(1)).await;
    gate.answer(Some(ErrorKind::ContentRefused));
    gate.let_through(1);
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), EntryAnswer::Discarded);
    assert!(states(&runtime).await.iter().all(|(sequence, _)| *sequence != 4));
    check_sums(&runtime);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn discarding_what_failed_removes_it_from_the_failed_store() {
    let journal = Journal::default();
    let (runtime, _gate) = every_state(&journal).await;
    assert_eq!(runtime.discard(&uid(3)).await.unwrap(), EntryAnswer::Discarded);
    assert_eq!((runtime.failed().count(None), sums(&runtime).failed), (0, 1));
    assert_eq!(runtime.discard(&uid(3)).await.unwrap_err().reason(), "not_found");
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retrying_clears_the_schedule_of_what_waits_and_leaves_the_rest_alone() {
    let journal = Journal::default();
    let (runtime, gate) = every_state(&journal).await;
    assert_eq!(runtime.retry(&uid(4)).await.unwrap(), EntryAnswer::InFlight);
    assert_eq!(runtime.retry(&uid(3)).await.unwrap_err().reason(), "entry_failed");
    assert_eq!(runtime.retry(&uid(99)).await.unwrap_err().reason(), "not_found");
    // It waits behind another one of its pid, which it does not pass.
    assert_eq!(runtime.retry(&uid(2)).await.unwrap(), EntryAnswer::Cleared);
    gate.let_through(100);
    pass(Duration::from_secs(10)).await;
    assert_eq!(states(&runtime).await[0], (1, EntryState::Retrying));
    let listed = list(&runtime, EntryQuery::default()).await;
    assert_eq!(listed[0].attempts, 1);
    assert!(listed[0].next_attempt_at.is_some() && listed[0].last_error.is_some());
    assert_eq!(runtime.retry(&uid(1)).await.unwrap(), EntryAnswer::Cleared);
    settled(&runtime).await;
    let got: Vec<_> = notes(&journal).into_iter().filter(|note| note.contains("delivered")).collect();
    assert_eq!(got, ["a: delivered 4", "a: delivered 1", "a: delivered 2"]);
    assert_eq!(sums(&runtime).delivered, 3);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeueing_is_a_retry_of_what_waits_and_a_new_uid_for_what_failed() {
    let journal = Journal::default();
    let (runtime, gate) = every_state(&journal).await;
    let mut notices = runtime.notices();
    assert_eq!(runtime.requeue(&uid(4)).await.unwrap(), EntryAnswer::InFlight);
    let EntryAnswer::Requeued { requeued_as, again, delivered_later } =
        runtime.requeue(&uid(3)).await.unwrap()
    else {
        panic!("it is not requeued");
    };
    assert_eq!((requeued_as.clone(), again, delivered_later), (uid(5), false, Some(0)));
    // Asked again, it answers the same.
    let answer = runtime.requeue(&uid(3)).await.unwrap();
    assert_eq!(answer, EntryAnswer::Requeued { requeued_as, again: true, delivered_later: None });
    gate.let_through(100);
    assert_eq!(runtime.requeue(&uid(1)).await.unwrap(), EntryAnswer::Cleared);
    settled(&runtime).await;
    let status = sums(&runtime);
    assert_eq!((status.requeued, status.delivered, status.failed), (1, 4, 1));
    assert_eq!(runtime.requeue(&uid(99)).await.unwrap_err().reason(), "not_found");
    assert!(notices.try_recv().is_ok());
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_a_reject_has_closed_goes_on_when_a_person_decides() {
    for requeue in [true, false] {
        let target = Scripted::new(|attempt| match attempt.event.id() {
            "1" | "2" => Err(ErrorKind::ContentRefused.into()),
            _ => Ok(()),
        });
        let stops = TargetOptions { on_reject: OnReject::StopPid, ..options() };
        let runtime = start_on(Store::memory(), vec![spec("a", &target, stops)]).await.unwrap();
        send(&runtime, [(1, "p")]).await;
        pass(Duration::from_secs(1)).await;
        send(&runtime, [(3, "p"), (4, "q"), (5, "p")]).await;
        pass(Duration::from_secs(100)).await;
        assert_eq!((target.delivered(), only(&runtime).waiting), (vec!["4".to_owned()], 2));
        target.answer(|_| Ok(()));
        if requeue {
            runtime.requeue(&uid(1)).await.unwrap();
            settled(&runtime).await;
            assert_eq!(target.delivered(), ["4", "3", "5", "1"]);
        } else {
            runtime.discard(&uid(1)).await.unwrap();
            settled(&runtime).await;
            assert_eq!(target.delivered(), ["4", "3", "5"]);
        }
        only(&runtime);
        runtime.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn verbs_reach_entries_far_behind_what_is_loaded() {
    let target = Scripted::new(|_| Err(ErrorKind::ServerFault.into()));
    let runtime = start_on(Store::memory(), vec![spec("a", &target, slow())]).await.unwrap();
    send(&runtime, [(1, "p")]).await;
    pass(Duration::from_secs(1)).await;
    for first in (2..=5_000_u64).step_by(500) {
        admit(&runtime, (first..(first + 500).min(5_001)).map(|i| event(i, Some("p")))).await;
    }
    pass(Duration::from_secs(1)).await;
    for sequence in [4_999, 2, 2_500] {
        assert_eq!(runtime.discard(&uid(sequence)).await.unwrap(), EntryAnswer::Discarded);
    }
    target.answer(|_| Ok(()));
    runtime.retry(&uid(1)).await.unwrap();
    settled(&runtime).await;
    target.check_order();
    assert_eq!((only(&runtime).delivered, only(&runtime).discarded), (4_997, 3));
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn listings_are_paged_and_filtered() {
    let target = Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into()));
    let runtime = start_on(Store::memory(), vec![spec("a", &target, options())]).await.unwrap();
    for first in [1, 301] {
        admit(&runtime, (first..first + 300).map(|i| event(i, Some(if i % 3 == 0 { "third" } else { "p" }))))
            .await;
    }
    let (mut query, mut seen, mut pages) = (EntryQuery { limit: 70, ..Default::default() }, Vec::new(), 0);
    loop {
        let page = runtime.entries(&name("a"), &query).await.unwrap();
        assert!(page.entries.len() <= 70);
        seen.extend(page.entries.iter().map(|entry| entry.uid.sequence));
        pages += 1;
        let Some(next) = page.next else { break };
        // As it travels over the wire.
        query.after = Some(next.to_string().parse::<EntryCursor>().unwrap());
    }
    assert_eq!((seen, pages), ((1..=600).collect::<Vec<_>>(), 10));
    let third = EntryQuery { pid: Some("third".to_owned()), ..Default::default() };
    let third = list(&runtime, third).await;
    assert!(third.len() == 200 && third.iter().all(|entry| entry.pid.as_deref() == Some("third")));
    let none = EntryQuery { state: Some(EntryState::Retrying), ..Default::default() };
    assert!(list(&runtime, none).await.is_empty());
    let unknown = runtime.entries(&name("b"), &EntryQuery::default()).await.unwrap_err();
    assert_eq!(unknown.reason(), "not_found");
    for wrong in ["", "w", "x1", "w-1", "ä"] {
        assert!(wrong.parse::<EntryCursor>().is_err(), "{wrong}");
    }
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_test_event_goes_straight_to_the_target_and_is_counted_nowhere() {
    let target = Scripted::good();
    let runtime = start_on(Store::memory(), vec![spec("a", &target, options())]).await.unwrap();
    runtime.pause(&name("a")).await.unwrap();
    let before = only(&runtime);
    assert!(runtime.test(&name("a")).await.unwrap().is_ok());
    target.answer(|attempt| {
        assert_eq!(attempt.event.kind(), "outhaul.test");
        Err(ErrorKind::Authentication.into())
    });
    let failed = runtime.test(&name("a")).await.unwrap().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Authentication);
    assert_eq!(target.seen().len(), 2);
    assert_eq!(only(&runtime), before);
    assert_eq!(only(&runtime).state, State::Paused);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_orphans_entries_are_listed_and_discarded() {
    let (dead, good) = (Scripted::new(|_| Err(ErrorKind::ConnectionRefused.into())), Scripted::good());
    let targets = vec![spec("a", &dead, options()), spec("b", &good, options())];
    let runtime = start_on(Store::memory(), targets).await.unwrap();
    send(&runtime, [(1, "p"), (2, "p")]).await;
    runtime.remove(&name("a"), outhaul_runtime::Leftover::Keep).await.unwrap();
    assert_eq!(list(&runtime, EntryQuery::default()).await.len(), 2);
    assert_eq!(runtime.retry(&uid(1)).await.unwrap_err().reason(), "orphan");
    assert_eq!(runtime.discard(&uid(1)).await.unwrap(), EntryAnswer::Discarded);
    assert_eq!(list(&runtime, EntryQuery::default()).await.len(), 1);
    check_sums(&runtime);
    runtime.shutdown(Duration::from_secs(5)).await.unwrap();
}
