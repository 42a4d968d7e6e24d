//! [`Summary`]: the last line on standard error.

use std::time::Duration;

use outhaul::TargetStatus;

use crate::args::SummaryForm;

/// What a run did, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Lines read.
    pub(crate) read: u64,
    /// Lines passed over.
    pub(crate) skipped: u64,
    /// Entries made durable.
    pub(crate) durable: u64,
    /// Entries delivered.
    pub(crate) delivered: u64,
    /// Attempts to be made again.
    pub(crate) retried: u64,
    /// Entries moved to the failed store.
    pub(crate) failed: u64,
    /// Entries that wait.
    pub(crate) waiting: u64,
}

impl Summary {
    /// Takes over the numbers of all targets, orphans included.
    pub(crate) fn look_at(&mut self, targets: &[TargetStatus]) {
        let sum = |of: fn(&TargetStatus) -> u64| targets.iter().map(of).sum();
        self.delivered = sum(|target| target.delivered);
        self.retried = sum(|target| target.retried);
        self.failed = sum(|target| target.failed);
        self.waiting = sum(|target| target.waiting);
    }

    pub(crate) fn line(&self, form: SummaryForm, time: Duration) -> String {
        let Self { read, skipped, durable, delivered, retried, failed, waiting } = self;
        let seconds = time.as_millis() as f64 / 1000.0;
        match form {
            SummaryForm::Text => format!(
                "read={read} skipped={skipped} durable={durable} delivered={delivered} retried={retried} \
                 failed={failed} waiting={waiting} seconds={seconds:.3}"
            ),
            SummaryForm::Json => format!(
                "{{\"read\":{read},\"skipped\":{skipped},\"durable\":{durable},\"delivered\":{delivered},\
                 \"retried\":{retried},\"failed\":{failed},\"waiting\":{waiting},\"seconds\":{seconds:.3}}}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_the_same_keys() {
        let summary = Summary { read: 3, skipped: 1, durable: 2, delivered: 2, ..Summary::default() };
        let time = Duration::from_millis(1_250);
        assert_eq!(
            summary.line(SummaryForm::Text, time),
            "read=3 skipped=1 durable=2 delivered=2 retried=0 failed=0 waiting=0 seconds=1.250"
        );
        let json = summary.line(SummaryForm::Json, time);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((json["read"].as_u64(), json["seconds"].as_f64()), (Some(3), Some(1.25)));
    }
}
