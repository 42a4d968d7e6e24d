//! A target whose attempts wait until a test lets them end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outhaul_runtime::TargetSpec;
use outhaul_runtime::target::{Attempt, Capabilities, DeliveryError, ErrorKind, Target, TargetOptions};
use tokio::sync::Semaphore;

use crate::support::name;

/// How a probe answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Good,
    Fails(ErrorKind),
    Hangs,
    Panics,
}

/// What happened, in order, at all gates that share a journal.
pub(crate) type Journal = Arc<Mutex<Vec<String>>>;

pub(crate) struct Gate {
    label: &'static str,
    journal: Journal,
    /// Attempts may end.
    open: Semaphore,
    /// What the next attempts end with.
    answer: Mutex<Option<ErrorKind>>,
    ask: Ask,
    exclusive: bool,
    panics: AtomicBool,
    pub(crate) begun: Semaphore,
    pub(crate) probing: AtomicUsize,
    pub(crate) probing_most: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(label: &'static str, journal: &Journal) -> Self {
        Self {
            label,
            journal: Arc::clone(journal),
            open: Semaphore::new(1_000_000),
            answer: Mutex::new(None),
            ask: Ask::Good,
            exclusive: false,
            panics: AtomicBool::new(false),
            begun: Semaphore::new(0),
            probing: AtomicUsize::new(0),
            probing_most: AtomicUsize::new(0),
        }
    }

    /// No attempt ends before it is let through.
    pub(crate) fn shut(mut self) -> Self {
        self.open = Semaphore::new(0);
        self
    }

    pub(crate) fn asked(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    pub(crate) fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Has its worker panic, where nobody catches it.
    pub(crate) fn panics(self, panics: bool) -> Self {
        self.panics.store(panics, Ordering::SeqCst);
        self
    }

    pub(crate) fn mend(&self) {
        self.panics.store(false, Ordering::SeqCst);
    }

    /// No attempt that begins from here on ends before it is let through.
    pub(crate) fn hold(&self) {
        self.open.forget_permits(1_000_000);
    }

    pub(crate) fn let_through(&self, attempts: usize) {
        self.open.add_permits(attempts);
    }

    pub(crate) fn answer(&self, answer: Option<ErrorKind>) {
        *self.answer.lock().unwrap() = answer;
    }

    /// Resolves when one more attempt has begun.
    pub(crate) async fn one_has_begun(&self) {
        // bounded: the clock is paused, or the test has a bound of its own.
        let wait = tokio::time::timeout(std::time::Duration::from_secs(600), self.begun.acquire());
        wait.await.unwrap().unwrap().forget();
    }

    fn note(&self, what: &str) {
        self.journal.lock().unwrap().push(format!("{}: {what}", self.label));
    }
}

#[async_trait]
impl Target for Gate {
    fn kind(&self) -> &'static str {
        "gate"
    }

    fn capabilities(&self) -> Capabilities {
        assert!(!self.panics.load(Ordering::SeqCst), "a defect that the test has planted");
        Capabilities { exclusive: self.exclusive, ..Capabilities::default() }
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        self.begun.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        let answer = *self.answer.lock().unwrap();
        for event in events {
            let word = if answer.is_none() { "delivered" } else { "failed" };
            self.note(&format!("{word} {}", event.event.id()));
        }
        events.iter().map(|_| answer.map_or(Ok(()), |kind| Err(kind.into()))).collect()
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        let now = self.probing.fetch_add(1, Ordering::SeqCst) + 1;
        self.probing_most.fetch_max(now, Ordering::SeqCst);
        self.note("probed");
        /// Counts a probe out however it ends.
        struct Probing<'a>(&'a AtomicUsize);
        impl Drop for Probing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let _probing = Probing(&self.probing);
        match self.ask {
            Ask::Good => Ok(()),
            Ask::Fails(kind) => Err(kind.into()),
            Ask::Hangs => std::future::pending().await,
            Ask::Panics => panic!("a defect that the test has planted"),
        }
    }

    async fn close(&self) -> Result<(), DeliveryError> {
        self.note("closed");
        Ok(())
    }
}

pub(crate) fn gate_spec(text: &str, gate: &Arc<Gate>, options: TargetOptions) -> TargetSpec {
    TargetSpec::new(name(text), Arc::clone(gate) as _, options, format!("test:{text}"))
}

pub(crate) fn notes(journal: &Journal) -> Vec<String> {
    journal.lock().unwrap().iter().filter(|note| !note.ends_with("probed")).cloned().collect()
}
