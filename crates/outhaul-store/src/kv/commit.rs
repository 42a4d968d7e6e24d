//! What engines on a disk share: one owned thread writes, and all that waits shares one sync. Reads run on tokio's
//! blocking threads. So async callers never touch the disk.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::spawn_blocking;

use super::batch::ROW_OVERHEAD_BYTES;
use super::{Batch, KvError, KvLimits, Revision};

/// Calls are gathered into one commit up to this size.
const GROUP_BYTES: usize = 16 << 20;

/// A blocking engine. One thread at a time commits; reads come from any.
pub(super) trait Engine: fmt::Debug + Send + Sync + 'static {
    /// The revision of a key, of what is committed.
    fn revision(&self, key: &Bytes) -> Result<Option<Revision>, KvError>;
    /// The newest revision that was given out.
    fn newest(&self) -> Revision;
    /// Makes all changes durable, or none; `newest` with them.
    fn commit(&self, changes: Vec<Change>, newest: Revision) -> Result<(), Uncommitted>;
    /// Gives the files back.
    fn close(self) -> Result<(), KvError>;
}

/// A key with its new value and revision, or without.
pub(super) type Change = (Bytes, Option<(Revision, Bytes)>);

/// Why there was no commit.
#[derive(Debug)]
pub(super) enum Uncommitted {
    /// Nothing was written, and the engine goes on.
    Refused(KvError),
    /// Nobody knows what is on disk.
    Unknown(String),
}

/// The door to an engine.
#[derive(Debug)]
pub(super) struct Committer<E: Engine> {
    shared: Arc<Shared<E>>,
    calls: Sender<Call>,
    room: Arc<Semaphore>,
    room_bytes: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<E> {
    /// Gone when closed.
    engine: RwLock<Option<E>>,
    failure: OnceLock<Arc<str>>,
    closing: AtomicBool,
    /// How the engine ended.
    ended: watch::Sender<Option<Result<(), KvError>>>,
}

type Answers = Vec<Result<Revision, KvError>>;

#[derive(Debug)]
enum Call {
    Apply { batches: Vec<Batch>, reply: oneshot::Sender<Answers>, _room: OwnedSemaphorePermit },
    Flush(oneshot::Sender<()>),
    Close,
}

impl<E: Engine> Committer<E> {
    /// Starts the thread. What waits to be written takes at most `room_bytes` of memory, except for a single call
    /// that is larger than that.
    pub(super) fn start(engine: E, room_bytes: u32) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            engine: RwLock::new(Some(engine)),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
            ended: watch::Sender::new(None),
        });
        let (calls, queue) = channel();
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("outhaul-kv".to_owned()).spawn(move || own.run(&queue))?;
        let room = Arc::new(Semaphore::new(room_bytes as usize));
        Ok(Self { shared, calls, room, room_bytes, thread: Mutex::new(Some(thread)) })
    }

    pub(super) async fn apply_many(&self, batches: Vec<Batch>, limits: &KvLimits) -> Answers {
        let mut answers =
            batches.iter().map(|batch| batch.check(limits).map(|()| Revision(0))).collect::<Vec<_>>();
        let good = batches.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        let good = good.map(|(batch, _)| batch).collect::<Vec<_>>();
        let count = good.len();
        let written = match self.hand_over(good).await {
            Ok(written) => written,
            Err(error) => vec![Err(error); count],
        };
        for (answer, written) in answers.iter_mut().filter(|answer| answer.is_ok()).zip(written) {
            *answer = written;
        }
        answers
    }

    async fn hand_over(&self, batches: Vec<Batch>) -> Result<Answers, KvError> {
        self.shared.writable()?;
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = batches.iter().map(|batch| batch.bytes() + ROW_OVERHEAD_BYTES).sum::<usize>();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.room_bytes);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let (reply, answers) = oneshot::channel();
        let call = Call::Apply { batches, reply, _room: room.map_err(|_| KvError::Closed)? };
        self.calls.send(call).map_err(|_| self.shared.gone())?;
        match answers.await {
            Ok(answers) => Ok(answers),
            Err(_) => {
                // Whether it was a panic is known when the thread has ended, which is at once.
                self.shared.ended.subscribe().wait_for(Option::is_some).await.map(drop).unwrap_or_default();
                Err(self.shared.gone())
            }
        }
    }

    /// Reads on a blocking thread.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&E) -> Result<T, KvError> + Send + 'static,
    ) -> Result<T, KvError> {
        self.shared.open()?;
        let shared = Arc::clone(&self.shared);
        let read = spawn_blocking(move || {
            let engine = shared.engine.read().unwrap_or_else(PoisonError::into_inner);
            engine.as_ref().map_or(Err(KvError::Closed), job)
        });
        match read.await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => Err(KvError::Failed("a read panicked: a defect".into())),
            Err(_) => Err(KvError::Closed),
        }
    }

    pub(super) fn failure(&self) -> Option<KvError> {
        self.shared.failure.get().cloned().map(KvError::Failed)
    }

    pub(super) async fn flush(&self) -> Result<(), KvError> {
        self.shared.writable()?;
        let (reply, done) = oneshot::channel();
        self.calls.send(Call::Flush(reply)).map_err(|_| self.shared.gone())?;
        done.await.map_err(|_| self.shared.gone())?;
        self.shared.writable()
    }

    pub(super) async fn close(&self) -> Result<(), KvError> {
        self.begin_close();
        let mut ended = self.shared.ended.subscribe();
        let how = ended.wait_for(Option::is_some).await;
        let how = how.ok().and_then(|how| how.clone()).unwrap_or(Err(KvError::Closed));
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // It has said that it is at its end: this waits for no disk.
            thread.join().map_err(|_| KvError::Failed("the commit thread panicked: a defect".into()))?;
        }
        how
    }

    fn begin_close(&self) {
        if !self.shared.closing.swap(true, Ordering::AcqRel) {
            self.room.close();
            // If the thread is gone, so is the engine.
            self.calls.send(Call::Close).unwrap_or_default();
        }
    }
}

impl<E: Engine> Drop for Committer<E> {
    /// Without a close: what was handed over is still written.
    fn drop(&mut self) {
        self.begin_close();
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().unwrap_or_default();
        }
    }
}

impl<E: Engine> Shared<E> {
    fn open(&self) -> Result<(), KvError> {
        if self.closing.load(Ordering::Acquire) { Err(KvError::Closed) } else { Ok(()) }
    }

    fn writable(&self) -> Result<(), KvError> {
        self.open()?;
        self.failure.get().map_or(Ok(()), |why| Err(KvError::Failed(Arc::clone(why))))
    }

    /// Why the thread did not answer.
    fn gone(&self) -> KvError {
        self.failure.get().map_or(KvError::Closed, |why| KvError::Unknown(Arc::clone(why)))
    }

    fn fail(&self, why: &str) -> Arc<str> {
        Arc::clone(self.failure.get_or_init(|| why.into()))
    }

    fn run(&self, calls: &Receiver<Call>) {
        let _guard = OnPanic(self);
        let mut closing = false;
        while !closing && let Ok(first) = calls.recv() {
            let (mut group, mut flushes, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut next = Some(first);
            while let Some(call) = next {
                match call {
                    Call::Apply { batches, reply, _room } => {
                        bytes += batches.iter().map(Batch::bytes).sum::<usize>();
                        group.push((batches, reply, _room));
                    }
                    Call::Flush(reply) => flushes.push(reply),
                    Call::Close => closing = true,
                }
                next = if closing || bytes >= GROUP_BYTES { None } else { calls.try_recv().ok() };
            }
            let (batches, waiting): (Vec<_>, Vec<_>) =
                group.into_iter().map(|(batches, reply, room)| (batches, (reply, room))).unzip();
            for (answers, (reply, _)) in self.round(&batches).into_iter().zip(waiting) {
                // Whoever does not wait any more finds out by reading.
                reply.send(answers).unwrap_or_default();
            }
            for reply in flushes {
                reply.send(()).unwrap_or_default();
            }
        }
        let engine = self.engine.write().unwrap_or_else(PoisonError::into_inner).take();
        let ended = engine.map_or(Ok(()), Engine::close);
        self.ended.send_replace(Some(ended));
    }

    /// Commits what was gathered; the answers are in the order of the calls.
    fn round(&self, calls: &[Vec<Batch>]) -> Vec<Answers> {
        let refused =
            |error: &KvError| calls.iter().map(|call| vec![Err(error.clone()); call.len()]).collect();
        if let Some(why) = self.failure.get() {
            return refused(&KvError::Failed(Arc::clone(why)));
        }
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.as_ref() else { return refused(&KvError::Closed) };
        let mut round = Round::new(engine);
        let mut answers = calls
            .iter()
            .map(|call| call.iter().map(|batch| round.take(batch)).collect::<Answers>())
            .collect::<Vec<_>>();
        let error = match round.commit() {
            Ok(()) => return answers,
            Err(Uncommitted::Refused(error)) => error,
            Err(Uncommitted::Unknown(why)) => KvError::Unknown(self.fail(&why)),
        };
        // A refusal may rest on what another batch of the round would have written.
        for (answer, batch) in answers.iter_mut().flatten().zip(calls.iter().flatten()) {
            *answer = match &error {
                KvError::Unknown(why) if answer.is_err() || batch.writes().is_empty() => {
                    Err(KvError::Failed(Arc::clone(why)))
                }
                error => Err(error.clone()),
            };
        }
        answers
    }
}

/// One commit in the making.
struct Round<'a, E> {
    engine: &'a E,
    newest: Revision,
    /// The last write of each key.
    changes: HashMap<Bytes, Option<(Revision, Bytes)>>,
    written: bool,
}

impl<'a, E: Engine> Round<'a, E> {
    fn new(engine: &'a E) -> Self {
        Self { engine, newest: engine.newest(), changes: HashMap::new(), written: false }
    }

    fn take(&mut self, batch: &Batch) -> Result<Revision, KvError> {
        batch.check_conditions(|key| match self.changes.get(key) {
            Some(change) => Ok(change.as_ref().map(|(revision, _)| *revision)),
            None => self.engine.revision(key),
        })?;
        if !batch.writes().is_empty() {
            self.newest = self.newest.next();
            self.written = true;
        }
        for write in batch.writes() {
            let change = write.value.clone().map(|value| (self.newest, value));
            self.changes.insert(write.key.clone(), change);
        }
        Ok(self.newest)
    }

    fn commit(self) -> Result<(), Uncommitted> {
        if !self.written {
            return Ok(());
        }
        let mut changes = self.changes.into_iter().collect::<Vec<_>>();
        changes.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.engine.commit(changes, self.newest)
    }
}

/// If the thread panics, callers must not wait for ever, and the files must be given back.
struct OnPanic<'a, E>(&'a Shared<E>);

impl<E> Drop for OnPanic<'_, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = self.0.failure.get_or_init(|| "the commit thread panicked: a defect".into());
            drop(self.0.engine.write().unwrap_or_else(PoisonError::into_inner).take());
            self.0.ended.send_replace(Some(Err(KvError::Failed(Arc::clone(why)))));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::SyncSender;

    use super::*;

    /// An engine whose commits wait to be told how to end.
    #[derive(Debug)]
    struct Scripted {
        begun: SyncSender<usize>,
        ends: Mutex<Receiver<Result<(), Uncommitted>>>,
        newest: AtomicU64,
    }

    impl Engine for Scripted {
        fn revision(&self, _: &Bytes) -> Result<Option<Revision>, KvError> {
            Ok(None)
        }

        fn newest(&self) -> Revision {
            Revision(self.newest.load(Ordering::Relaxed))
        }

        fn commit(&self, changes: Vec<Change>, newest: Revision) -> Result<(), Uncommitted> {
            self.begun.send(changes.len()).unwrap();
            lock(&self.ends).recv().expect("the test ends the commit")?;
            self.newest.store(newest.0, Ordering::Relaxed);
            Ok(())
        }

        fn close(self) -> Result<(), KvError> {
            Ok(())
        }
    }

    struct Script {
        committer: Arc<Committer<Scripted>>,
        begun: Receiver<usize>,
        ends: Sender<Result<(), Uncommitted>>,
    }

    fn script(room_bytes: u32) -> Script {
        let (begun, begins) = std::sync::mpsc::sync_channel(100);
        let (ends, told) = channel();
        let engine = Scripted { begun, ends: Mutex::new(told), newest: AtomicU64::new(0) };
        let committer = Arc::new(Committer::start(engine, room_bytes).unwrap());
        Script { committer, begun: begins, ends }
    }

    impl Script {
        fn put(&self, key: &'static str) -> impl Future<Output = Answers> + Send + use<> {
            let committer = Arc::clone(&self.committer);
            let mut batch = Batch::new();
            batch.put(key, "").require(key, None);
            async move { committer.apply_many(vec![batch], &KvLimits::default()).await }
        }
    }

    #[tokio::test]
    async fn what_waits_shares_a_commit() {
        let script = script(1 << 20);
        let mut calls = tokio::task::JoinSet::new();
        calls.spawn(script.put("first"));
        tokio::task::yield_now().await;
        assert_eq!(script.begun.recv().unwrap(), 1);
        for key in ["a", "b", "c", "a"] {
            calls.spawn(script.put(key));
            tokio::task::yield_now().await;
        }
        script.ends.send(Ok(())).unwrap();
        script.ends.send(Ok(())).unwrap();
        let mut answers = calls.join_all().await.concat();
        assert_eq!(script.begun.recv().unwrap(), 3, "three keys in one commit");
        let conflicts =
            answers.extract_if(.., |answer| matches!(answer, Err(KvError::Conflict { .. }))).count();
        let mut revisions = answers.into_iter().map(|answer| answer.unwrap().0).collect::<Vec<_>>();
        revisions.sort_unstable();
        assert_eq!((revisions, conflicts), (vec![1, 2, 3, 4], 1));
    }

    #[tokio::test]
    async fn a_commit_that_fails_is_unknown_and_the_last() {
        let script = script(1 << 20);
        script.ends.send(Err(Uncommitted::Unknown("EIO".to_owned()))).unwrap();
        let answer = script.put("a").await;
        assert!(matches!(&answer[..], [Err(KvError::Unknown(why))] if &**why == "EIO"), "{answer:?}");
        assert!(matches!(script.put("b").await[..], [Err(KvError::Failed(_))]));
        assert!(matches!(script.committer.flush().await, Err(KvError::Failed(_))));
        assert!(matches!(script.committer.failure(), Some(KvError::Failed(_))));
        assert_eq!(script.committer.read(|_| Ok(7)).await.unwrap(), 7, "reads go on");
        script.committer.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_commit_that_is_refused_is_not_the_last() {
        let script = script(1 << 20);
        let full = KvError::DiskFull("/disk".into());
        script.ends.send(Err(Uncommitted::Refused(full))).unwrap();
        script.ends.send(Ok(())).unwrap();
        assert!(matches!(script.put("a").await[..], [Err(KvError::DiskFull(_))]));
        assert!(matches!(script.put("a").await[..], [Ok(Revision(1))]), "no revision was used up");
    }

    #[tokio::test]
    async fn a_panic_of_the_engine_answers_everybody() {
        let script = script(1 << 20);
        drop(script.ends);
        let committer = Arc::clone(&script.committer);
        let mut batch = Batch::new();
        batch.put("a", "");
        let answer = committer.apply_many(vec![batch], &KvLimits::default()).await;
        assert!(matches!(answer[..], [Err(KvError::Unknown(_))]), "{answer:?}");
        assert!(matches!(committer.close().await, Err(KvError::Failed(_))));
        assert!(matches!(committer.read(|_| Ok(())).await, Err(KvError::Closed)));
    }

    #[tokio::test]
    async fn who_finds_no_room_waits_and_leaves_nothing_when_dropped() {
        let script = script(200);
        let mut calls = tokio::task::JoinSet::new();
        calls.spawn(script.put("first"));
        tokio::task::yield_now().await;
        assert_eq!(script.begun.recv().unwrap(), 1);
        let mut dropped = Box::pin(script.put("dropped"));
        assert!(poll_once(&mut dropped).is_none(), "there is no room");
        drop(dropped);
        script.ends.send(Ok(())).unwrap();
        script.ends.send(Ok(())).unwrap();
        assert!(matches!(calls.join_all().await.concat()[..], [Ok(Revision(1))]));
        assert!(matches!(script.put("last").await[..], [Ok(Revision(2))]));
        assert_eq!(script.begun.try_iter().collect::<Vec<_>>(), [1], "the dropped one was never written");
    }

    #[tokio::test]
    async fn closing_finishes_what_was_handed_over() {
        let script = script(1 << 20);
        let mut calls = tokio::task::JoinSet::new();
        calls.spawn(script.put("a"));
        tokio::task::yield_now().await;
        script.begun.recv().unwrap();
        calls.spawn(script.put("b"));
        tokio::task::yield_now().await;
        script.ends.send(Ok(())).unwrap();
        script.ends.send(Ok(())).unwrap();
        script.committer.close().await.unwrap();
        assert!(calls.join_all().await.concat().iter().all(Result::is_ok));
        assert!(matches!(script.put("c").await[..], [Err(KvError::Closed)]));
    }

    fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        }
    }
}
