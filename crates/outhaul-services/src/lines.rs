//! A receiver of lines, where a protocol needs no server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Listens on a loopback port for the rest of the process, keeps each whole line, and answers each with a text.
#[derive(Debug)]
pub struct LineReceiver {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl LineReceiver {
    /// Starts one that answers with this text and a line feed.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start(answer: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (of_thread, answer) = (Arc::clone(&lines), format!("{answer}\n"));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (lines, answer) = (Arc::clone(&of_thread), answer.clone());
                thread::spawn(move || serve(&stream, &answer, &lines));
            }
        });
        Self { address, lines }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The lines so far, in the order of their arrival.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A line that is cut off is none.
fn serve(stream: &TcpStream, answer: &str, lines: &Mutex<Vec<String>>) {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(1..) if line.ends_with('\n') => {}
            _ => return,
        }
        line.pop();
        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
