//! The webhook target on loopback, and the client below it in a bare loop.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use measure::{Report, Setup, cpu};
use outhaul_runtime::target::TargetOptions;
use outhaul_target_webhook::{Webhook, WebhookOptions};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::filled::{event, filled};
use crate::rig::{self, Rig};

/// Requests of each sender.
const EACH: u64 = 400;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Through the runtime, `setup.count` in flight.
pub(crate) fn delivered(setup: &Setup) -> Result<Report> {
    let count = setup.count * EACH;
    let dir = filled(setup, "even", count)?;
    rig::tokio()?.block_on(async {
        let receiver = Receiver::start().await?;
        let webhook = Webhook::new(WebhookOptions::new(&receiver.url))?;
        let in_flight = NonZeroUsize::new(setup.count as usize).context("none in flight")?;
        let options = TargetOptions { in_flight, ..TargetOptions::default() };
        let (begun, before) = (Instant::now(), cpu());
        let rig = Rig::start(&dir, Arc::new(webhook), options).await?;
        rig.has_settled(0).await?;
        let (secs, used) = (begun.elapsed().as_secs_f64(), cpu() - before);
        rig.stop().await?;
        receiver.report(count, secs, used.as_secs_f64())
    })
}

/// The same requests, made before, `setup.count` at a time.
pub(crate) fn bare(setup: &Setup) -> Result<Report> {
    let count = setup.count * EACH;
    rig::tokio()?.block_on(async {
        let receiver = Receiver::start().await?;
        let client = client()?;
        let (one, next) = (event("pid-0000001", 1)?, Arc::new(AtomicU64::new(0)));
        let mut headers = HeaderMap::new();
        for (name, value) in one.to_headers() {
            headers.insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::try_from(value)?);
        }
        headers.insert("webhook-id", HeaderValue::try_from(one.dedup_id().to_string())?);
        headers.insert("webhook-timestamp", HeaderValue::from_static("1790000000"));
        let (begun, before) = (Instant::now(), cpu());
        let mut senders = JoinSet::new();
        for _ in 0..setup.count {
            let (client, url, next) = (client.clone(), receiver.url.clone(), Arc::clone(&next));
            let (headers, body) = (headers.clone(), one.body().clone());
            senders.spawn(async move {
                while next.fetch_add(1, Ordering::Relaxed) < count {
                    let mut answer =
                        client.post(&url).headers(headers.clone()).body(body.clone()).send().await?;
                    ensure!(answer.status().is_success(), "the answer is {}", answer.status());
                    while answer.chunk().await?.is_some() {}
                }
                Ok(())
            });
        }
        senders.join_all().await.into_iter().collect::<Result<Vec<()>>>()?;
        let (secs, used) = (begun.elapsed().as_secs_f64(), cpu() - before);
        receiver.report(count, secs, used.as_secs_f64())
    })
}

/// As the target makes its own.
fn client() -> Result<reqwest::Client> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls).http1_only().no_proxy();
    let builder = builder.redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never());
    Ok(builder.referer(false).user_agent("outhaul-bench").build()?)
}

/// Answers every request as soon as it is there, and counts. It looks at no more of a request than its length.
struct Receiver {
    url: String,
    answered: Arc<AtomicU64>,
    /// Dropped, it ends.
    _task: JoinSet<()>,
}

impl Receiver {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/events", listener.local_addr()?);
        let answered = Arc::new(AtomicU64::new(0));
        let (counter, mut task) = (Arc::clone(&answered), JoinSet::new());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&counter)));
            }
        });
        Ok(Self { url, answered, _task: task })
    }

    fn report(&self, count: u64, secs: f64, cpu_secs: f64) -> Result<Report> {
        let answered = self.answered.load(Ordering::Relaxed);
        ensure!(answered >= count, "{answered} of {count} requests came");
        Ok(Report::default()
            .with("events_per_s", count as f64 / secs)
            .with("cpu_us_per_event", cpu_secs * 1e6 / count as f64))
    }
}

async fn serve(mut stream: TcpStream, answered: Arc<AtomicU64>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        while let Some(length) = request(&buffer)? {
            buffer.drain(..length);
            answered.fetch_add(1, Ordering::Relaxed);
            stream.write_all(ANSWER).await?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// The length of the request that a buffer begins with, if all of it is there.
fn request(buffer: &[u8]) -> Result<Option<usize>> {
    let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&buffer[..head])?;
    let mut fields = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = head + 4 + length.map_or(Ok(0), |(_, number)| number.trim().parse::<usize>())?;
    Ok((buffer.len() >= length).then_some(length))
}
