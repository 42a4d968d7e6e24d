//! What can be done with the entries of a store, whoever asks: the verbs on a directory at rest, or the administration
//! of a running relay. Answers are values that are shown as JSON as they are.

pub(crate) mod failed;
pub(crate) mod queue;
