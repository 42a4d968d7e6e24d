//! A webhook receiver in the test, which answers as it is told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Answers with this status.
    Status(u16),
    /// Never answers.
    Hang,
    /// Breaks the connection.
    Reset,
}

/// A request that arrived whole.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    method: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) act: Act,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn id(&self) -> &str {
        self.header("ce-id")
    }
}

type Rule = Box<dyn Fn(&Arrival) -> Act + Send + Sync>;

struct Shared {
    rule: Mutex<Arc<Rule>>,
    arrivals: Mutex<Vec<Arrival>>,
    stop: AtomicBool,
}

/// Listens until it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

impl Receiver {
    pub(crate) fn new(rule: impl Fn(&Arrival) -> Act + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), rule)
    }

    pub(crate) fn at(address: SocketAddr, rule: impl Fn(&Arrival) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let rule = Mutex::new(Arc::new(Box::new(rule) as Rule));
        let shared = Arc::new(Shared { rule, arrivals: Mutex::default(), stop: AtomicBool::new(false) });
        let all = Arc::clone(&shared);
        let listening = thread::spawn(move || {
            for stream in listener.incoming() {
                if all.stop.load(Ordering::SeqCst) {
                    return;
                }
                let all = Arc::clone(&all);
                // A connection ends with its client.
                thread::spawn(move || serve(&all, &stream.unwrap()).unwrap_or_default());
            }
        });
        Self { address, shared, listener: Some(listening) }
    }

    /// Answers in another way from now on.
    pub(crate) fn rule(&self, rule: impl Fn(&Arrival) -> Act + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Arc::new(Box::new(rule));
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.lock().unwrap().clone()
    }

    /// The target's URI with these options.
    pub(crate) fn uri(&self, options: &str) -> String {
        format!("http://{}/hook?{options}", self.address)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).map(drop).unwrap_or_default();
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap_or_default();
        }
    }
}

fn serve(shared: &Shared, stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(mut arrival) = read(&mut reader)? {
        let rule = Arc::clone(&shared.rule.lock().unwrap());
        arrival.act = rule(&arrival);
        let act = arrival.act;
        // Anything else is a probe.
        if arrival.method == "POST" {
            shared.arrivals.lock().unwrap().push(arrival);
        }
        match act {
            Act::Status(status) => {
                let answer = format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n");
                { stream }.write_all(answer.as_bytes())?;
            }
            Act::Hang => {
                // The client has its own deadline; the read ends when it goes.
                stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                return reader.read(&mut [0]).map(drop);
            }
            Act::Reset => {
                rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
                return Ok(());
            }
        }
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Arrival>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let method = line.split(' ').next().unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Arrival { method, headers, body, act: Act::Hang }))
}
