use outhaul_writer::{RefusedReason, WriterOptions};

use crate::logged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_full_shard_refuses_and_gives_the_operation_back() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(2));
    let first = occupy(&sink, &writer, "a").await;
    let second = writer.try_admit(op("a", 1)).unwrap();
    let third = writer.try_admit(op("b", 2)).unwrap();
    let refused = writer.try_admit(op("c", 3)).unwrap_err();
    assert_eq!((refused.reason, refused.ops), (RefusedReason::Saturated, vec![op("c", 3)]));
    sink.go_on();
    // What was admitted is only delayed by the saturation.
    assert_eq!(soon(first).await, Ok(1_000_000));
    assert_eq!((soon(second).await, soon(third).await), (Ok(1), Ok(2)));
    assert_eq!(sink.applied(), [1_000_000, 1, 2], "what was refused is never applied");
}

#[tokio::test(start_paused = true)]
async fn the_depth_counts_what_is_accepted_and_not_taken() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    let first = writer.try_admit(op("a", 0)).unwrap();
    assert_eq!(writer.stats().depth, 1, "counted before the shard has seen it");
    sink.entered(1).await;
    let second = writer.try_admit(Op { bytes: 7, ..op("a", 1) }).unwrap();
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.depth_bytes, stats.in_flight), (1, 7, 1));
    assert_eq!(stats.accepted, 2);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    assert_eq!(
        writer.stats().applying_for,
        Some(std::time::Duration::from_secs(5)),
        "a sink that hangs shows"
    );
    sink.go_on();
    soon(first).await.unwrap();
    soon(second).await.unwrap();
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.depth_bytes, stats.in_flight, stats.applying_for), (0, 0, 0, None));
    assert_eq!(
        (stats.accepted, stats.applied, stats.failed, stats.high_water, stats.batches),
        (2, 2, 0, 1, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn the_byte_budget_bounds_too() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..one_by_one(100) });
    drop(occupy(&sink, &writer, "a").await);
    drop(writer.try_admit(Op { bytes: 6, ..op("a", 1) }).unwrap());
    drop(writer.try_admit(Op { bytes: 4, ..op("a", 2) }).unwrap());
    let refused = writer.try_admit(op("a", 3)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Saturated);
}

#[tokio::test(start_paused = true)]
async fn the_capacity_is_divided_by_the_shards_and_at_least_one() {
    for (ops_max, capacity) in [(8, 2), (9, 2), (3, 1), (1, 1)] {
        let sink = TestSink::held();
        let writer = open(&sink, WriterOptions { shards: shards(4), ..one_by_one(ops_max) });
        drop(occupy(&sink, &writer, "a").await);
        let admitted = (0..20).take_while(|n| writer.try_admit(op("a", *n)).is_ok()).count();
        assert_eq!(admitted, capacity, "{ops_max} over 4 shards");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_admitted_as_a_whole_or_not_at_all() {
    let sink = TestSink::held();
    let two = shards(2);
    let (left, right) = (pid_of(0, two), pid_of(1, two));
    let writer = open(&sink, WriterOptions { shards: two, ..one_by_one(8) });
    let _in_sink = [occupy(&sink, &writer, &left).await, writer.try_admit(op(&right, 0)).unwrap()];
    sink.entered(2).await;
    drop(soon(writer.send(op(&right, 1))).await.unwrap());

    let group: Vec<Op> = ops(&left, 10..12).into_iter().chain(ops(&right, 12..16)).collect();
    let before = writer.stats();
    let refused = writer.try_admit_all(group.clone()).unwrap_err();
    assert_eq!(
        (refused.reason, &refused.ops),
        (RefusedReason::Saturated, &group),
        "the right shard has room for 3"
    );
    let after = writer.stats();
    assert_eq!((before.depth, before.accepted), (after.depth, after.accepted));
    assert_eq!(after.refused, 6);

    let tickets = writer.try_admit_all(group[..5].to_vec()).unwrap();
    sink.go_on();
    for (ticket, op) in tickets.into_iter().zip(&group) {
        assert_eq!(soon(ticket).await, Ok(op.value), "tickets are in the order of the operations");
    }
    assert_eq!(writer.try_admit_all(Vec::new()).unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_larger_than_the_capacity_is_admitted_when_its_shards_are_empty() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(occupy(&sink, &writer, "a").await);
    let waiting = writer.try_admit(op("a", 0)).unwrap();
    let refused = writer.try_admit_all(ops("b", 1..101)).unwrap_err();
    assert_eq!(
        (refused.reason, refused.ops.len()),
        (RefusedReason::Saturated, 100),
        "it would queue behind another"
    );
    sink.go_on();
    soon(waiting).await.unwrap();

    sink.hold();
    let tickets = writer.try_admit_all(refused.ops).unwrap();
    assert_eq!(writer.stats().depth, 100);
    writer.try_admit(op("c", 0)).unwrap_err();
    sink.go_on();
    for ticket in tickets {
        soon(ticket).await.unwrap();
    }
    assert_eq!(sink.applied_of("b"), (1..101).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_operations_pass_the_default_capacity_as_one_group() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    let group: Vec<Op> = (0..10_000).map(|n| op(&(n % 97).to_string(), n)).collect();
    assert_eq!(writer.try_admit_all(group).unwrap().len(), 10_000);
    soon(writer.flush()).await.unwrap();
    assert_eq!(writer.stats().applied, 10_000);
}

#[tokio::test(start_paused = true)]
async fn an_operation_larger_than_the_byte_budget_is_admitted_to_an_empty_shard() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..one_by_one(8) });
    drop(occupy(&sink, &writer, "a").await);
    drop(writer.try_admit(op("a", 0)).unwrap());
    let giant = Op { bytes: 1_000, ..op("b", 1) };
    let refused = writer.try_admit(giant.clone()).unwrap_err();
    assert_eq!((refused.reason, refused.ops), (RefusedReason::Saturated, vec![giant.clone()]));
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(soon(writer.try_admit(giant).unwrap()).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_ticket_changes_nothing() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(writer.try_admit(op("a", 1)).unwrap());
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_deep_backlog_is_warned_about_at_1024_and_each_power_of_two_above() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions::default());
    drop(occupy(&sink, &writer, "a").await);
    for (upto, warnings) in [(1_023, 0), (1_024, 1), (2_047, 1), (2_048, 2), (5_000, 3)] {
        while writer.stats().depth < upto {
            drop(writer.try_admit(op("a", 1)).unwrap());
        }
        assert_eq!(logged::times("the backlog is deeper"), warnings, "{upto}");
    }
    assert_eq!(writer.stats().high_water, 5_000);
}
