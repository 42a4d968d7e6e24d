//! [`FileTarget`], the asynchronous face; the writing itself is in [`sink`].

mod regular;
mod sink;
mod stream;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use outhaul_target::{
    Attempt, BatchOrder, Capabilities, ConfigError, DeliveryError, ErrorKind, Target, TargetUri, async_trait,
};
use tokio::sync::Mutex;

use crate::codec;
use crate::config::{BATCH_MAX, Destination, FileOptions};
use crate::error::Failure;
use sink::Sink;

/// Appends events to a file, or writes them to standard output. Nothing is opened before it is needed.
pub struct FileTarget {
    options: FileOptions,
    /// Held by whoever writes, from a blocking thread.
    sink: Arc<Mutex<Sink>>,
}

impl FileTarget {
    /// Makes a target out of `file:PATH`, `file:///abs/path` or `stdout:`.
    ///
    /// # Errors
    /// The URI is not valid. Whether the file can be opened shows at the first delivery.
    pub fn from_uri(uri: TargetUri) -> Result<Self, ConfigError> {
        Ok(Self::new(FileOptions::from_uri(uri)?))
    }

    /// Makes a target. A batch size out of its bounds is moved into them.
    pub fn new(mut options: FileOptions) -> Self {
        options.batch_max = options.batch_max.clamp(1, BATCH_MAX);
        if let Destination::Path(path) = &mut options.destination
            && let Ok(absolute) = std::path::absolute(&*path)
        {
            *path = absolute;
        }
        let sink = Sink::new(&options.destination);
        Self { options, sink: Arc::new(Mutex::new(sink)) }
    }

    /// Makes a target that writes to an open pipe, socket or terminal, as `stdout:` does; `destination` of the
    /// options is not used.
    pub fn to_stream(stream: OwnedFd, mut options: FileOptions) -> Self {
        options.destination = Destination::Stdout;
        Self { sink: Arc::new(Mutex::new(Sink::stream(stream))), ..Self::new(options) }
    }

    /// Where events go: `stdout:`, or the absolute path.
    pub fn destination(&self) -> String {
        match &self.options.destination {
            Destination::Path(path) => path.display().to_string(),
            Destination::Stdout => "stdout:".to_owned(),
        }
    }

    /// Does some work with the sink, alone, on a blocking thread, within the deadline. What has begun ends, even if
    /// nobody waits for it any more; the next work waits for that.
    async fn with_sink<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Sink, Instant) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        // The work ends a little before we stop waiting, so that what it wrote is known.
        let deadline = Instant::now() + self.options.timeout.mul_f32(0.9);
        let done = async {
            let mut sink = Arc::clone(&self.sink).lock_owned().await;
            tokio::task::spawn_blocking(move || work(&mut sink, deadline)).await
        };
        match tokio::time::timeout(self.options.timeout, done).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Failure::new(ErrorKind::Unknown, "the runtime is shutting down")),
            Err(_) => Err(Failure::new(ErrorKind::TimedOut, "writing took longer than the deadline")),
        }
    }
}

#[async_trait]
impl Target for FileTarget {
    fn kind(&self) -> &'static str {
        match self.options.destination {
            Destination::Path(_) => "file",
            Destination::Stdout => "stdout",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            batch_max: self.options.batch_max,
            batch_order: BatchOrder::Prefix,
            // The file is locked by whoever writes to it.
            exclusive: true,
            ..Capabilities::default()
        }
    }

    /// Appends a batch: one write and one sync. Dropping the future lets a batch that is being written end; its lines
    /// are whole, and the next batch comes behind them.
    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let lines = codec::lines(events, self.options.format);
        let (bytes, ends) = (lines.bytes, lines.ends);
        let (written, failure) = if ends.is_empty() {
            (0, None)
        } else {
            match self.with_sink(move |sink, deadline| sink.append(&bytes, &ends, deadline)).await {
                Ok(outcome) => outcome,
                Err(failure) => (0, Some(failure)),
            }
        };
        let mut line = 0;
        let result = |failed: Option<DeliveryError>| {
            if let Some(error) = failed {
                return Err(error);
            }
            line += 1;
            match &failure {
                Some(failure) if line > written => Err(failure.clone().into()),
                _ => Ok(()),
            }
        };
        lines.failed.into_iter().map(result).collect()
    }

    /// Asks whether the file or its directory can be written, or whether the reader of a pipe is there. Creates and
    /// writes nothing; dropping the future leaves nothing behind.
    async fn probe(&self) -> Result<(), DeliveryError> {
        Ok(self.with_sink(|sink, _| sink.probe()).await??)
    }

    /// Waits for a batch that is being written, and closes the file. Dropping the future may leave it open.
    async fn close(&self) -> Result<(), DeliveryError> {
        self.with_sink(|sink, _| sink.close()).await?;
        Ok(())
    }

    /// Closes the file and opens, or creates, what the path names now. Dropping the future leaves the target usable.
    async fn reopen(&self) -> Result<(), DeliveryError> {
        Ok(self.with_sink(|sink, _| sink.reopen()).await??)
    }
}

impl fmt::Debug for FileTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTarget").field("options", &self.options).finish_non_exhaustive()
    }
}
