use outhaul_writer::{RefusedReason, WriterOptions};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_send_waits_for_room_and_is_never_refused() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(2));
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    let mut sends: Vec<_> = (2..6).map(|n| Box::pin(writer.send(op("a", n)))).collect();
    for send in &mut sends {
        assert!(pending(send).await);
    }
    assert!(writer.is_saturated());
    let stats = writer.stats();
    assert_eq!((stats.depth, stats.accepted, stats.waiting, stats.stalled), (2, 3, 4, 4));
    sink.go_on();
    for send in sends {
        soon(soon(send).await.unwrap()).await.unwrap();
    }
    assert_eq!(
        sink.applied()[1..],
        [0, 1, 2, 3, 4, 5],
        "in the order of the calls, behind what was admitted"
    );
}

#[tokio::test(start_paused = true)]
async fn a_send_goes_through_while_admission_is_closed() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(8));
    drop(occupy(&sink, &writer, "a").await);
    while writer.try_admit(op("a", 0)).is_ok() {}
    for _ in 0..2 {
        sink.step().await;
    }
    assert!(writer.is_saturated());
    drop(soon(writer.send(op("b", 1))).await.unwrap());
    assert_eq!(writer.stats().stalled, 0);
}

#[tokio::test(start_paused = true)]
async fn a_send_dropped_while_it_waits_leaves_nothing() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(2));
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    let mut dropped = Box::pin(writer.send(op("b", 2)));
    let mut behind = Box::pin(writer.send(op("c", 3)));
    assert!(pending(&mut dropped).await);
    assert!(pending(&mut behind).await);
    drop(dropped);
    assert_eq!((writer.stats().waiting, writer.stats().accepted), (1, 3));
    sink.go_on();
    soon(soon(behind).await.unwrap()).await.unwrap();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied(), [1_000_000, 0, 1, 3]);
    assert_eq!(
        writer.try_admit_all(ops("d", 4..6)).map(|tickets| tickets.len()).unwrap(),
        2,
        "no slot is lost"
    );
}

#[tokio::test(start_paused = true)]
async fn a_send_dropped_after_it_got_its_room_gives_it_back() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(2));
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    let mut dropped = Box::pin(writer.send(op("b", 2)));
    let mut behind = Box::pin(writer.send(op("c", 3)));
    assert!(pending(&mut dropped).await);
    assert!(pending(&mut behind).await);
    sink.step().await;
    assert_eq!(
        (writer.stats().waiting, writer.stats().depth),
        (1, 1),
        "the first has room, and has not taken it"
    );
    assert!(pending(&mut behind).await, "that room is not the second's");
    drop(dropped);
    assert_eq!(writer.stats().waiting, 0);
    drop(soon(behind).await.unwrap());
    assert_eq!(writer.stats().depth, 2);
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert_eq!(sink.applied(), [1_000_000, 0, 1, 3]);
    assert!(!writer.is_saturated());
    assert_eq!(
        writer.try_admit_all(ops("d", 4..6)).map(|tickets| tickets.len()).unwrap(),
        2,
        "no slot is lost"
    );
}

#[tokio::test(start_paused = true)]
async fn a_send_that_was_never_polled_leaves_nothing() {
    let sink = TestSink::new();
    let writer = open(&sink, WriterOptions::default());
    drop(writer.send(op("a", 1)));
    soon(writer.close()).await.unwrap();
    assert_eq!((writer.stats().accepted, writer.stats().stalled), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_send_larger_than_the_byte_budget_waits_for_an_empty_shard() {
    let sink = TestSink::held();
    let writer = open(&sink, WriterOptions { bytes_max: count(10), ..one_by_one(8) });
    drop(occupy(&sink, &writer, "a").await);
    writer.try_admit_all(ops("a", 0..2)).unwrap();
    let mut giant = Box::pin(writer.send(Op { bytes: 50, ..op("b", 2) }));
    let mut behind = Box::pin(writer.send(op("c", 3)));
    assert!(pending(&mut giant).await);
    assert!(pending(&mut behind).await, "it waits its turn although it would fit");
    sink.step().await;
    assert_eq!(writer.stats().waiting, 2);
    sink.go_on();
    soon(soon(giant).await.unwrap()).await.unwrap();
    soon(soon(behind).await.unwrap()).await.unwrap();
    assert_eq!(sink.applied(), [1_000_000, 0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_waits_when_the_writer_closes_gives_the_operation_back() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(1));
    drop(occupy(&sink, &writer, "a").await);
    drop(writer.try_admit(op("a", 0)).unwrap());
    let mut send = Box::pin(writer.send(op("b", 1)));
    assert!(pending(&mut send).await);
    let mut close = Box::pin(writer.close());
    assert!(pending(&mut close).await);
    assert_eq!(soon(send).await.unwrap_err().op, op("b", 1));
    assert_eq!(soon(writer.send(op("b", 2))).await.unwrap_err().op, op("b", 2));
    sink.go_on();
    soon(close).await.unwrap();
    assert_eq!(sink.applied(), [1_000_000, 0]);
}

#[tokio::test(start_paused = true)]
async fn new_work_does_not_overtake_a_send_of_its_pid_that_has_not_come_for_its_room() {
    let sink = TestSink::held();
    let writer = open(&sink, one_by_one(4));
    drop(occupy(&sink, &writer, "b").await);
    for n in 0..4 {
        drop(writer.try_admit(op("b", n)).unwrap());
    }
    let mut send = Box::pin(writer.send(op("a", 10)));
    assert!(pending(&mut send).await);
    sink.go_on();
    soon(writer.flush()).await.unwrap();
    assert!(!writer.is_saturated(), "it has its room, and is not polled");
    assert_eq!(writer.try_admit(op("a", 11)).unwrap_err().reason, RefusedReason::Saturated);
    let group = vec![op("b", 12), op("a", 13)];
    assert_eq!(writer.try_admit_all(group).unwrap_err().reason, RefusedReason::Saturated);
    assert!(!writer.is_saturated(), "it closes nothing to others");
    soon(writer.try_admit(op("b", 14)).unwrap()).await.unwrap();
    drop(soon(send).await.unwrap());
    soon(writer.try_admit(op("a", 15)).unwrap()).await.unwrap();
    assert_eq!(sink.applied_of("a"), [10, 15]);
}
