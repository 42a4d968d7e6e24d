//! A running server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::error::Error;
use crate::kind::{Access, Kind};
use crate::process::{Identity, Process, pause};
use crate::tls::{Authority, Certificate, Pair};
use crate::{files, ports, servers};

/// How long a server may take until it answers: Erlang on a machine that compiles beside it needs its time.
const START_MAX: Duration = Duration::from_secs(120);

/// How long a server may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Another program may take a port between our look and the server's.
const TRIES: u32 = 3;

/// What a server shall be like.
#[derive(Debug, Clone)]
pub struct Builder {
    kind: Kind,
    access: Access,
    certificate: Certificate,
    config: Vec<String>,
    left_running: bool,
}

impl Builder {
    /// How it lets a client in; plain unless told.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// What its certificate is like; good unless told.
    #[must_use]
    pub fn certificate(mut self, certificate: Certificate) -> Self {
        self.certificate = certificate;
        self
    }

    /// A further line of its configuration file (an argument, of one that has no file).
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// It runs on when this process ends without having dropped its handle.
    #[must_use]
    pub fn left_running(mut self) -> Self {
        self.left_running = true;
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, has no such variant, ended, or did not answer within two minutes.
    pub fn start(self) -> Result<Server, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Server::new(self.clone()).and_then(|mut server| server.start().map(|()| server)) {
                Err(Error::NotStarted { .. }) if tries < TRIES => {}
                other => return other,
            }
        }
    }
}

/// A server that runs, or was stopped and can be started again. It ends, and its directory goes, with the handle.
#[derive(Debug)]
pub struct Server {
    pub(crate) is: Builder,
    pub(crate) ports: Vec<u16>,
    pub(crate) program: PathBuf,
    authority: Option<Authority>,
    // They end before their directory goes.
    processes: Vec<Process>,
    directory: TempDir,
}

impl Server {
    /// Begins to describe a server.
    pub fn builder(kind: Kind) -> Builder {
        Builder {
            kind,
            access: Access::Plain,
            certificate: Certificate::Good,
            config: Vec::new(),
            left_running: false,
        }
    }

    fn new(is: Builder) -> Result<Self, Error> {
        let (kind, access) = (is.kind, is.access);
        if !kind.accesses().contains(&access) {
            let reason = "the server that can be had here does not know it";
            return Err(Error::Unsupported { kind, access, reason });
        }
        let program = crate::find(kind)?;
        let temporary = |source| Error::File { path: std::env::temp_dir(), source };
        let directory = tempfile::Builder::new().prefix("outhaul-services-").tempdir().map_err(temporary)?;
        let authority = access.is_tls().then(|| Authority::new(&directory.path().join("tls"))).transpose()?;
        if let Some(authority) = &authority {
            authority.server("server", is.certificate)?;
            authority.client("client", false)?;
        }
        let ports = std::iter::repeat_with(ports::free).take(servers::ports(kind)).collect();
        let server = Self { is, ports, program, authority, directory, processes: Vec::new() };
        servers::prepare(&server)?;
        Ok(server)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.is.kind
    }

    /// How it lets a client in.
    pub fn access(&self) -> Access {
        self.is.access
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[0]))
    }

    /// Its address with scheme and credentials, without a path: `redis://127.0.0.1:16379`.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// The same for somebody who reaches it through `address`, a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        servers::url(self.is.kind, self.is.access, address)
    }

    /// The throw-away authority, of a server that speaks TLS.
    ///
    /// # Panics
    /// The server does not.
    pub fn authority(&self) -> &Authority {
        self.authority.as_ref().expect("a server with TLS")
    }

    /// The certificate of a client that the server trusts.
    ///
    /// # Panics
    /// The server has no TLS.
    pub fn client(&self) -> Pair {
        let directory = self.authority().ca();
        Pair { cert: directory.with_file_name("client.pem"), key: directory.with_file_name("client.key") }
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it wrote.
    pub fn log(&self) -> PathBuf {
        self.directory().join("log")
    }

    /// Its processes.
    pub fn identities(&self) -> Vec<Identity> {
        self.processes.iter().filter_map(Process::identity).collect()
    }

    /// Starts it after it was stopped or killed, on the same port with the data that it kept, and waits until it
    /// answers.
    ///
    /// # Errors
    /// It ended, or did not answer within two minutes.
    pub fn start(&mut self) -> Result<(), Error> {
        self.kill();
        let dies_with_us = (!self.is.left_running).then(|| self.directory.path().to_owned());
        for command in servers::commands(self)? {
            self.processes.push(Process::start(command, &self.log(), dies_with_us.as_deref())?);
        }
        let until = Instant::now() + START_MAX;
        while !servers::answers(self) {
            let ended = self.processes.iter_mut().find_map(Process::ended);
            let late = (Instant::now() >= until).then(|| format!("no answer within {START_MAX:?}"));
            if let Some(reason) = ended.or(late) {
                let log = files::tail(&self.log(), 20);
                self.kill();
                return Err(Error::NotStarted { kind: self.is.kind, reason, log });
            }
            pause();
        }
        servers::started(self)
    }

    /// Asks it to end and waits until it has.
    pub fn stop(&mut self) {
        // The last one started is the server; what it needs ends behind it.
        while let Some(process) = self.processes.pop() {
            process.end(servers::stop_signal(self.is.kind), STOP_MAX);
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        while let Some(process) = self.processes.pop() {
            process.kill();
        }
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop();
        self.start()
    }

    /// Kills it and starts it on the same port with nothing of what it held.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart_empty(&mut self) -> Result<(), Error> {
        self.kill();
        let data = self.data();
        if data.exists() {
            std::fs::remove_dir_all(&data).map_err(|source| Error::File { path: data, source })?;
        }
        servers::prepare(self)?;
        self.start()
    }

    /// SIGSTOP: connections stay, and nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Has a mosquitto write down what it holds (SIGUSR1); the others do so by themselves.
    pub fn save(&self) {
        if self.is.kind == Kind::Mqtt {
            self.signal(Signal::USR1);
        }
    }

    /// Writes another certificate of the server; it counts after the next start.
    ///
    /// # Errors
    /// A file cannot be written.
    ///
    /// # Panics
    /// The server has no TLS.
    pub fn set_certificate(&mut self, certificate: Certificate) -> Result<(), Error> {
        self.is.certificate = certificate;
        self.authority().server("server", certificate)?;
        servers::own(self)
    }

    /// Leaves it running with its directory, which it returns.
    pub fn leave(mut self) -> PathBuf {
        self.processes.drain(..).for_each(Process::leave);
        let Self { directory, .. } = self;
        directory.keep()
    }

    fn signal(&self, signal: Signal) {
        self.processes.iter().for_each(|process| process.signal(signal));
    }

    pub(crate) fn config(&self) -> &[String] {
        &self.is.config
    }

    /// What it keeps between its lives.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory().join("data")
    }

    /// A file of its TLS, as text for a configuration.
    pub(crate) fn tls(&self, file: &str) -> String {
        self.directory().join("tls").join(file).display().to_string()
    }
}
