//! Durable events per second through the journal: 1 KiB events, each producer waits for its receipt.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use outhaul_store::event::{Event, TargetName};
use outhaul_store::{
    Admission, Journal, JournalOptions, Log, OsFileSystem, Outcome, QueueSettings, Settlement, Shards,
};

fn open(dir: &Path) -> Arc<Journal> {
    let fs = Arc::new(OsFileSystem);
    let journal = Journal::open(fs, &dir.join("log"), &dir.join("quarantine"), JournalOptions::default());
    let journal = Arc::new(journal.expect("a fresh directory opens"));
    journal.attach(&target(), QueueSettings::default()).expect("an open log attaches");
    journal
}

fn target() -> TargetName {
    TargetName::new("bench").expect("a good name")
}

fn admission(number: u64) -> Admission {
    let event = Event::builder("com.example.bench", "/bench").pid(format!("pid-{}", number % 100));
    let event = event.body("application/octet-stream", vec![7; 900]).build().expect("a good event");
    Admission::new(Arc::new(event), [target()].into())
}

fn append(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(10);
    for producers in [1, 8, 64, 512] {
        group.bench_function(format!("{producers} tasks"), |bencher| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let journal = open(dir.path());
            bencher.iter_custom(|events| {
                let begun = Instant::now();
                runtime.block_on(async {
                    let mut tasks = tokio::task::JoinSet::new();
                    for task in 0..producers {
                        let journal = Arc::clone(&journal);
                        let share = events / producers + u64::from(task < events % producers);
                        tasks.spawn(async move {
                            for number in 0..share {
                                assert!(journal.append(vec![admission(number)]).await[0].is_ok());
                            }
                        });
                    }
                    tasks.join_all().await;
                });
                begun.elapsed()
            });
        });
    }
    group.finish();
}

fn drain(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let mut group = criterion.benchmark_group("drain");
    group.throughput(Throughput::Elements(20_000)).sample_size(10);
    group.bench_function("read and settle 20,000", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let journal = open(dir.path());
                for chunk in 0..20 {
                    journal.append_sync((0..1000).map(|number| admission(chunk * 1000 + number)).collect());
                }
                let begun = Instant::now();
                runtime.block_on(async {
                    let lease = journal.lease(Shards::All).await.expect("an open log leases");
                    let mut after = 0;
                    loop {
                        let read = lease.read(&target(), after, 1024, 4 << 20).await.expect("a good read");
                        if read.entries.is_empty() {
                            break;
                        }
                        after = read.next;
                        let settle = |entry: outhaul_store::Entry| Settlement {
                            place: entry.place,
                            outcome: Outcome::Delivered,
                        };
                        lease
                            .settle(read.entries.into_iter().map(settle).collect())
                            .await
                            .expect("a good lease");
                    }
                    journal.flush().await.expect("a good disk");
                });
                took += begun.elapsed();
            }
            took
        });
    });
    group.finish();
}

criterion_group!(benches, append, drain);
criterion_main!(benches);
