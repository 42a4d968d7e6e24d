//! What the writer has logged in this thread, which is this test.
//!
//! The subscriber is the global one: with scoped ones, what another thread's test reaches first stays off for all.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_core::span::Current;

thread_local! {
    static PANIC_AT: Cell<Option<&'static str>> = const { Cell::new(None) };
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static FOLLOWS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static ENTERED: RefCell<Vec<(u64, &'static Metadata<'static>)>> = const { RefCell::new(Vec::new()) };
}

/// Starts to listen; before the first writer of the process is opened.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Messages::default()).unwrap());
}

/// How many messages began so.
pub(crate) fn times(beginning: &str) -> usize {
    MESSAGES.with_borrow(|messages| messages.iter().filter(|message| message.starts_with(beginning)).count())
}

/// From this message on the log panics, once.
pub(crate) fn panic_at(message: &'static str) {
    PANIC_AT.set(Some(message));
}

/// The spans that others followed from, in order.
pub(crate) fn follows() -> Vec<u64> {
    FOLLOWS.with_borrow(Clone::clone)
}

#[derive(Default)]
struct Messages {
    spans: Mutex<Vec<&'static Metadata<'static>>>,
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let message = format!("{value:?}");
            if PANIC_AT.get().is_some_and(|at| at == message) {
                PANIC_AT.set(None);
                panic!("told to");
            }
            MESSAGES.with_borrow_mut(|messages| messages.push(message));
        }
    }
}

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() || metadata.target().starts_with("outhaul_writer")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut spans = self.spans.lock().unwrap();
        spans.push(attributes.metadata());
        span::Id::from_u64(spans.len() as u64)
    }

    fn current_span(&self) -> Current {
        let last = ENTERED.with_borrow(|entered| entered.last().copied());
        last.map_or_else(Current::none, |(id, metadata)| Current::new(span::Id::from_u64(id), metadata))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, follows: &span::Id) {
        FOLLOWS.with_borrow_mut(|all| all.push(follows.into_u64()));
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }

    fn enter(&self, id: &span::Id) {
        let id = id.into_u64();
        let metadata = self.spans.lock().unwrap()[id as usize - 1];
        ENTERED.with_borrow_mut(|entered| entered.push((id, metadata)));
    }

    fn exit(&self, _: &span::Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }
}
