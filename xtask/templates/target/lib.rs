use outhaul_target::net::{Stream, connect, within};
use outhaul_target::{
    Address, Attempt, ConfigError, DeliveryError, ErrorKind, Target, TargetOptions, TargetUri, async_trait, encode,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// A receiver of lines.
#[derive(Debug)]
pub struct Lines {
    address: Address,
    options: TargetOptions,
    destination: String,
    closed: std::sync::atomic::AtomicBool,
}

impl Lines {
    /// Reads `lines://HOST:PORT`.
    ///
    /// # Errors
    /// The URI is not valid.
    pub fn from_uri(mut uri: TargetUri) -> Result<Self, ConfigError> {
        let (destination, options) = (uri.destination(), uri.options().clone());
        let address = Address::take(&mut uri, 7777)?;
        uri.finish()?;
        Ok(Self { address, options, destination, closed: false.into() })
    }

    /// Where events go, without credentials.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    async fn connect(&self) -> Result<Stream, DeliveryError> {
        match self.closed.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(ErrorKind::Closed.into()),
            false => connect(&self.address.host, self.address.port, None, self.options.connect_timeout).await,
        }
    }

    async fn send(&self, attempt: &Attempt) -> Result<(), DeliveryError> {
        let (mut line, mut answer) = (Vec::new(), String::new());
        encode::line(&attempt.event, self.options.format, &mut line)?;
        line.push(b'\n');
        let mut stream = BufReader::new(self.connect().await?);
        stream.write_all(&line).await.map_err(DeliveryError::from_io)?;
        // Never more than a bound of what a stranger sends.
        stream.take(16).read_line(&mut answer).await.map_err(DeliveryError::from_io)?;
        match &*answer {
            "ok\n" => Ok(()),
            _ => Err(ErrorKind::Unknown.into()),
        }
    }
}

#[async_trait]
impl Target for Lines {
    fn kind(&self) -> &'static str {
        "lines"
    }

    async fn deliver(&self, events: &[Attempt]) -> Vec<Result<(), DeliveryError>> {
        let mut results = Vec::with_capacity(events.len());
        for attempt in events {
            results.push(within(self.options.timeout, self.send(attempt)).await);
        }
        results
    }

    async fn probe(&self) -> Result<(), DeliveryError> {
        self.connect().await.map(drop)
    }

    async fn close(&self) -> Result<(), DeliveryError> {
        self.closed.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}
