//! A TCP proxy that spoils a line.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A TCP proxy in front of a server, on a loopback port of its own. It ends with its handle.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    refusing: bool,
    listening: bool,
    held: bool,
    delay: Duration,
    /// How many bytes the clients may still send before all lines are cut.
    cut_after: Option<u64>,
    bytes_per_second: Option<u64>,
    lines: Vec<TcpStream>,
}

impl Proxy {
    /// Starts a proxy to `upstream`.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, crate::ports::free())).expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Mutex::new(State { listening: true, ..State::default() });
        let shared = Arc::new(Shared { upstream, state, changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || of_thread.listen(listener, address));
        Self { address, shared }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every line that is open; new ones are taken.
    pub fn cut(&self) {
        self.shared.lock().cut();
    }

    /// Cuts every line and listens no more, so that connections are refused; or listens again. Returns when it is so.
    ///
    /// # Panics
    /// Another process took the port meanwhile.
    pub fn refuse(&self, refuse: bool) {
        self.set(|state| {
            state.refusing = refuse;
            if refuse {
                state.cut();
            }
        });
        self.wake();
        let state = self.shared.lock();
        let settled = |state: &mut State| state.listening == refuse;
        drop(self.shared.changed.wait_while(state, settled).unwrap_or_else(PoisonError::into_inner));
    }

    /// Its thread may wait in `accept`.
    fn wake(&self) {
        drop(TcpStream::connect(self.address));
    }

    /// Half-opens the lines: they stay and new ones are taken, but nothing goes through; or lets it go on.
    pub fn hold(&self, hold: bool) {
        self.set(|state| state.held = hold);
    }

    /// Delays what goes through, in each direction, by this time.
    pub fn delay(&self, delay: Duration) {
        self.set(|state| state.delay = delay);
    }

    /// Cuts all lines when the clients have sent this many bytes more.
    pub fn cut_after(&self, bytes: u64) {
        self.set(|state| state.cut_after = Some(bytes));
    }

    /// Lets this many bytes per second through in each direction of each line; `None` lets all.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.set(|state| state.bytes_per_second = bytes_per_second);
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(|state| {
            state.ended = true;
            state.held = false;
            state.cut();
        });
        self.wake();
    }
}

impl State {
    fn cut(&mut self) {
        for line in self.lines.drain(..) {
            // It may be closed already.
            drop(line.shutdown(Shutdown::Both));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes clients until the proxy ends, without a listener for as long as they are to be refused.
    fn listen(self: &Arc<Self>, first: TcpListener, address: SocketAddr) {
        let mut listener = Some(first);
        loop {
            let mut state = self.lock();
            if state.ended {
                return;
            }
            if state.refusing {
                listener = None;
            }
            state.listening = listener.is_some();
            self.changed.notify_all();
            let Some(open) = &listener else {
                let refusing = |state: &mut State| state.refusing && !state.ended;
                let state = self.changed.wait_while(state, refusing).unwrap_or_else(PoisonError::into_inner);
                if !state.ended {
                    listener = Some(TcpListener::bind(address).expect("the port that was ours before"));
                }
                continue;
            };
            drop(state);
            if let Ok((client, _)) = open.accept() {
                let shared = Arc::clone(self);
                thread::spawn(move || shared.serve(client));
            }
        }
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        if self.lock().refusing {
            return;
        }
        let Ok(server) = TcpStream::connect(self.upstream) else { return };
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(from_client), Ok(to_server), Ok(a), Ok(b)) = copies else { return };
        {
            let mut state = self.lock();
            if state.refusing || state.ended {
                return;
            }
            state.lines.retain(|line| line.peer_addr().is_ok());
            state.lines.extend([a, b]);
        }
        let shared = Arc::clone(&self);
        thread::spawn(move || shared.copy(from_client, to_server, true));
        self.copy(server, client, false);
    }

    /// Carries one direction until either side ends.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream, of_client: bool) {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) => length,
            };
            let length = self.pass(length, of_client);
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
            if of_client {
                self.count(length);
            }
        }
        drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
    }

    /// Waits as long as what was read has to, and says how much of it goes on.
    fn pass(&self, length: usize, of_client: bool) -> usize {
        let state = self.lock();
        let state =
            self.changed.wait_while(state, |state| state.held).unwrap_or_else(PoisonError::into_inner);
        let (delay, rate, cut_after) = (state.delay, state.bytes_per_second, state.cut_after);
        drop(state);
        let slow =
            rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(length as f64 / rate.max(1) as f64));
        if !(delay + slow).is_zero() {
            // bounded: this is the delay that the test asked for.
            thread::sleep(delay + slow);
        }
        cut_after
            .filter(|_| of_client)
            .map_or(length, |left| length.min(usize::try_from(left).unwrap_or(length)))
    }

    fn count(&self, sent: usize) {
        let mut state = self.lock();
        if let Some(left) = &mut state.cut_after {
            *left = left.saturating_sub(sent as u64);
            if *left == 0 {
                state.cut_after = None;
                state.cut();
            }
        }
    }
}
