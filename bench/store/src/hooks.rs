//! What the store is to have and has not yet. Each is behind a feature of this crate's manifest.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use outhaul_store::{JournalOptions, Log};

/// Options that open a journal as if no segment had a footer.
pub(crate) fn without_footers() -> Option<JournalOptions> {
    Some(JournalOptions { verify: true, ..JournalOptions::default() })
}

/// The spool engine in an empty directory, with the queue `a`.
pub(crate) fn spool(_dir: &Path) -> Option<Result<Arc<dyn Log>>> {
    #[cfg(feature = "spool")]
    compile_error!("open the spool engine here, attach the queue `a`, and return its log");
    None
}
