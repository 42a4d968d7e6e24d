//! Admitting a source to a queue.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_event::{DedupId, TargetName};

use super::taken::Taken;
use super::{Source, SourceEntry, SourceFile};
use crate::error::{AppendError, StoreError};
use crate::failed::{FailedEntry, FailedStore};
use crate::fs::FileSystem;
use crate::log::{Admission, Log, Origin, Shards};
use crate::spool::{decode_failed, record_key};

/// How many events are admitted and noted together.
const CHUNK_EVENTS: usize = 1000;
/// How many bytes of events, about.
const CHUNK_BYTES: usize = 4 << 20;

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Events that were admitted.
    pub imported: u64,
    /// Events whose file was taken by an earlier import, or that were found waiting after one that did not end.
    pub skipped_already: u64,
    /// Files that cannot be decoded, each with the reason. They are left where they are.
    pub undecodable: Vec<(String, String)>,
    /// Failed entries that were put into the failed store.
    pub failed: u64,
    /// Names that are none of an entry, and failed entries where there was no failed store to put them into.
    pub ignored: Vec<String>,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Files that were looked at.
    pub files_done: usize,
    /// All of them.
    pub files: usize,
    /// Events that were admitted so far.
    pub imported: u64,
}

/// An import that stopped. What it had admitted is noted: asking again goes on there.
#[derive(Debug, thiserror::Error)]
#[error("the import stopped after {} events: {source}", .report.imported)]
pub struct ImportError {
    /// What was done before.
    pub report: ImportReport,
    /// Why it went no further.
    pub source: ImportFailure,
}

/// Why an import went no further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportFailure {
    /// An event was not admitted, for example because the queue is full.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The list of what was taken, or the queue, cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Admits all that waits in a source to the queue of a target that is attached, in the source's order; what had failed
/// there goes to the failed store, or is left without one. The data directory is the one of the log; nobody else
/// imports into it meanwhile.
///
/// Dropping the future leaves what was admitted; asking again goes on there.
pub async fn import_into(
    log: &dyn Log,
    failed: Option<&FailedStore>,
    fs: Arc<dyn FileSystem>,
    data: &Path,
    target: &TargetName,
    source: Source,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<ImportReport, ImportError> {
    let mut report = ImportReport { ignored: source.ignored().to_vec(), ..ImportReport::default() };
    let into = Into { log, failed, target };
    match run(into, fs, data, source, &mut progress, &mut report).await {
        Ok(()) => Ok(report),
        Err(source) => Err(ImportError { report, source }),
    }
}

#[derive(Clone, Copy)]
struct Into<'a> {
    log: &'a dyn Log,
    failed: Option<&'a FailedStore>,
    target: &'a TargetName,
}

async fn run(
    into: Into<'_>,
    fs: Arc<dyn FileSystem>,
    data: &Path,
    mut source: Source,
    progress: &mut (dyn FnMut(Progress) + Send),
    report: &mut ImportReport,
) -> Result<(), ImportFailure> {
    let Into { log, failed, target } = into;
    let (files, product) = (source.len(), source.made_by());
    let dir = data.join("import");
    let name = format!("{}.taken", crate::spool::names::directory(target));
    let mut taken = blocking(move || Taken::open(&*fs, &dir, &name)).await??;
    let waiting = if taken.ended { HashSet::new() } else { waiting(log, target).await? };
    let targets: Arc<[TargetName]> = [target.clone()].into();
    taken = blocking(move || taken.begin().map(|()| taken)).await??;
    loop {
        let (chunk, rest) = blocking(move || (next_chunk(&mut source), source)).await?;
        source = rest;
        if chunk.is_empty() {
            break;
        }
        let (mut wanted, mut copies) = (Vec::new(), Vec::new());
        for SourceFile { name, entries, failed: raw, fingerprint } in chunk {
            let entries = match entries {
                Ok(entries) => entries,
                Err(reason) => {
                    report.undecodable.push((name, reason));
                    continue;
                }
            };
            if let Some(raw) = raw {
                match (failed, taken.contains(product, &name, fingerprint), copy(&name, &raw, target)) {
                    (None, ..) => report.ignored.push(name),
                    (_, true, _) => report.skipped_already += 1,
                    (.., Ok(entry)) => copies.push(((name, fingerprint), entry)),
                    (.., Err(reason)) => report.undecodable.push((name, reason)),
                }
                continue;
            }
            let all = entries.len() as u64;
            let own = if taken.contains(product, &name, fingerprint) {
                Vec::new()
            } else {
                let new = entries.into_iter().filter(|entry| !waiting.contains(&entry.dedup_id));
                new.map(|entry| admission(entry, &targets)).collect()
            };
            report.skipped_already += all - own.len() as u64;
            wanted.push(Wanted { name, fingerprint, admissions: own });
        }
        let (mut names, imported, mut failure) = admit(log, wanted).await;
        report.imported += imported;
        if let Some(failed) = failed.filter(|_| failure.is_none() && !copies.is_empty()) {
            let (files, copies): (Vec<_>, Vec<_>) = copies.into_iter().unzip();
            for (file, result) in files.into_iter().zip(failed.put_each(copies).await) {
                match result {
                    Ok(()) => {
                        report.failed += 1;
                        names.push(file);
                    }
                    Err(error) => failure = failure.or(Some(error.into())),
                }
            }
        }
        taken = blocking(move || taken.append(product, &names).map(|()| taken)).await??;
        progress(Progress { files_done: source.done(), files, imported: report.imported });
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    blocking(move || taken.end()).await??;
    Ok(())
}

/// A file's name and fingerprint.
type TakenFile = (String, u64);

/// A failed entry, as the failed store has it.
fn copy(name: &str, raw: &Bytes, target: &TargetName) -> Result<FailedEntry, String> {
    let id = name.rsplit('/').next().unwrap_or(name);
    let key = record_key(id).ok_or("its name is no UUID")?;
    decode_failed(raw, target, key)
}

/// What is to be admitted of one file.
struct Wanted {
    name: String,
    fingerprint: u64,
    admissions: Vec<Admission>,
}

fn admission(entry: SourceEntry, targets: &Arc<[TargetName]>) -> Admission {
    let mut admission = Admission::new(entry.event, Arc::clone(targets));
    (admission.dedup_id, admission.origin) = (entry.dedup_id, Origin::Import);
    admission
}

/// Admits files, all together if there is room for that and else as many as there is room for. Returns those that are
/// in the log with all of their events, how many events that is, and what stopped it.
async fn admit(log: &dyn Log, wanted: Vec<Wanted>) -> (Vec<TakenFile>, u64, Option<ImportFailure>) {
    let lengths: Vec<_> = wanted.iter().map(|file| file.admissions.len()).collect();
    let (mut names, mut all) = (Vec::new(), Vec::new());
    for file in wanted {
        names.push((file.name, file.fingerprint));
        all.extend(file.admissions);
    }
    let together = all.is_empty() || log.reserve(&mut all).is_ok();
    let (mut taken, mut imported) = (Vec::new(), 0);
    let mut all = all.into_iter();
    let mut groups: Vec<(Vec<TakenFile>, Vec<Admission>)> = Vec::new();
    if together {
        groups.push((names, all.collect()));
    } else {
        for (name, length) in names.into_iter().zip(lengths) {
            groups.push((vec![name], all.by_ref().take(length).collect()));
        }
    }
    for (names, mut batch) in groups {
        if !batch.is_empty() {
            if let Err(error) = log.reserve(&mut batch) {
                return (taken, imported, Some(error.into()));
            }
            let mut failure = None;
            for result in log.append(batch).await {
                match result {
                    Ok(_) => imported += 1,
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(error) = failure {
                // What of it is in the log is found there by the next import.
                return (taken, imported, Some(error.into()));
            }
        }
        taken.extend(names);
    }
    (taken, imported, None)
}

fn next_chunk(source: &mut Source) -> Vec<SourceFile> {
    let (mut chunk, mut events, mut bytes) = (Vec::new(), 0, 0);
    while events < CHUNK_EVENTS && bytes < CHUNK_BYTES && chunk.len() < CHUNK_EVENTS {
        let Some(file) = source.next() else { break };
        if let Ok(entries) = &file.entries {
            events += entries.len();
            bytes += entries.iter().map(|entry| entry.event.size()).sum::<usize>();
        }
        chunk.push(file);
    }
    chunk
}

/// The ids of all that waits in a queue.
async fn waiting(log: &dyn Log, target: &TargetName) -> Result<HashSet<DedupId>, StoreError> {
    let lease = log.lease(Shards::All).await?;
    let (mut ids, mut after) = (HashSet::new(), 0);
    loop {
        let read = lease.read(target, after, 1000, 4 << 20).await?;
        if read.entries.is_empty() {
            return Ok(ids);
        }
        after = read.next;
        ids.extend(read.entries.into_iter().map(|entry| entry.dedup_id));
    }
}

/// The disk is not for async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)
}
