//! What the store is compared with: `setup.count` threads, each of which puts one event of 1 KiB and goes on when the
//! rival's own sync has made it durable.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use measure::{Outcome, Report, Setup};

fn main() -> ExitCode {
    measure::run(|setup| {
        let event = measure::json(1024, 3);
        let report = match setup.case.as_str() {
            "files" => files(setup, &event),
            "fjall" => fjall(setup, &event),
            "okaywal" => okaywal(setup, &event),
            "raft-engine" => raft_engine(setup, &event),
            "redb" => redb(setup, &event),
            "sqlite" => sqlite(setup, &event),
            other => bail!("no case `{other}`"),
        };
        Ok(Outcome::Measured(report?))
    })
}

/// One file per event, as RustFS and MinIO keep their queues.
#[expect(clippy::disallowed_methods, reason = "this is what is measured, the sync of the directory included")]
fn files(setup: &Setup, event: &[u8]) -> Result<Report> {
    let write = |dir: &Path, name: u64| -> Result<()> {
        let unfinished = dir.join(format!("{name:020}.tmp"));
        let mut file = File::create(&unfinished)?;
        file.write_all(event)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, dir.join(format!("{name:020}.event")))?;
        Ok(File::open(dir)?.sync_all()?)
    };
    let names = &AtomicU64::new(0);
    measure::threads(setup, 1, |_| move || write(&setup.dir, names.fetch_add(1, Ordering::Relaxed)))
}

fn fjall(setup: &Setup, event: &[u8]) -> Result<Report> {
    let database = &fjall::Database::builder(&setup.dir).open()?;
    let keyspace = &database.keyspace("queue", fjall::KeyspaceCreateOptions::default)?;
    let keys = &AtomicU64::new(0);
    measure::threads(setup, 1, |_| {
        move || {
            keyspace.insert(keys.fetch_add(1, Ordering::Relaxed).to_be_bytes(), event)?;
            Ok(database.persist(fjall::PersistMode::SyncAll)?)
        }
    })
}

/// With large segments, which is better here than its own default.
fn okaywal(setup: &Setup, event: &[u8]) -> Result<Report> {
    let options = okaywal::Configuration::default_for(setup.dir.join("log"));
    let options =
        options.preallocate_bytes(64 << 20).checkpoint_after_bytes(60 << 20).buffer_bytes(256 << 10);
    let log = options.open(okaywal::LogVoid)?;
    let report = measure::threads(setup, 1, |_| {
        let log = &log;
        move || {
            let mut entry = log.begin_entry()?;
            entry.write_chunk(event)?;
            entry.commit()?;
            Ok(())
        }
    })?;
    log.shutdown()?;
    Ok(report)
}

fn raft_engine(setup: &Setup, event: &[u8]) -> Result<Report> {
    use raft_engine::{Config, Engine, LogBatch, ReadableSize};
    let config = Config {
        dir: setup.dir.join("log").to_string_lossy().into_owned(),
        batch_compression_threshold: ReadableSize(0),
        ..Config::default()
    };
    let engine = &Engine::open(config)?;
    let keys = &AtomicU64::new(0);
    measure::threads(setup, 1, |producer| {
        move || {
            let mut batch = LogBatch::with_capacity(1);
            let key = keys.fetch_add(1, Ordering::Relaxed).to_be_bytes().to_vec();
            batch.put(producer + 1, key, event.to_vec())?;
            engine.write(&mut batch, true)?;
            Ok(())
        }
    })
}

fn redb(setup: &Setup, event: &[u8]) -> Result<Report> {
    const QUEUE: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("queue");
    let database = &redb::Database::create(setup.dir.join("queue.redb"))?;
    let keys = &AtomicU64::new(0);
    measure::threads(setup, 1, |_| {
        move || {
            let write = database.begin_write()?;
            write.open_table(QUEUE)?.insert(keys.fetch_add(1, Ordering::Relaxed), event)?;
            Ok(write.commit()?)
        }
    })
}

/// One connection behind a lock: there is one writer at a time anyway.
fn sqlite(setup: &Setup, event: &[u8]) -> Result<Report> {
    let connection = rusqlite::Connection::open(setup.dir.join("queue.db"))?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB);",
    )?;
    let connection = &Mutex::new(connection);
    measure::threads(setup, 1, |_| {
        move || {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            connection.prepare_cached("INSERT INTO queue (body) VALUES (?1)")?.execute([event])?;
            Ok(())
        }
    })
}
