//! `outhaul run`: the relay.

mod admin;
mod admission;
mod body;
mod forms;
mod pages;
mod problem;
mod router;
mod server;
mod token;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outhaul::Outhaul;
use outhaul::runtime::RuntimeOptions;
use outhaul::store::Engine;
use outhaul::writer::WriterOptions;
use tokio::net::{TcpListener, lookup_host};
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::args::RunArgs;
use crate::console::{Console, counted, quoted, torn};
use crate::data_dir;
use crate::error::{CliError, Exit};
use crate::signals::{self, Signals};
use crate::targets;
use crate::value::Reader;
use admin::Admin;
use router::App;
use server::Server;
use token::Token;

pub(crate) use body::EVENTS_MAX;

/// How long attempts in flight may take when the relay cannot listen after all.
const DRAIN_UNBOUND: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: &RunArgs, console: &Console) -> Exit {
    match Box::pin(relay(args, console)).await {
        Ok(exit) => exit,
        Err(error) => console.fail(&error),
    }
}

async fn relay(args: &RunArgs, console: &Console) -> Result<Exit, CliError> {
    let example = "outhaul run --data ./outhaul-data --to stdout:";
    let to = targets::read(&args.target, example)?;
    data_dir::refuse_with_memory(&args.store, args.data.as_deref())?;
    let in_memory = args.store.asked == Some(Engine::Memory);
    // The engine `memory` leaves the path alone.
    let nowhere = PathBuf::from("memory");
    let Some(data) = args.data.as_ref().or(in_memory.then_some(&nowhere)) else {
        return Err(CliError::new(Exit::Wrong, "no data directory is given")
            .because("events are kept there until they are delivered")
            .help(format!(
                "outhaul run --data ./outhaul-data {}{}",
                targets::arguments(&to),
                targets::note(&to)
            )));
    };
    if !in_memory {
        data_dir::check(data)?;
    }
    let mut signals = Signals::new()?;
    let hangup = signals::listen(SignalKind::hangup())?;
    let token = args.token_file.as_deref().map(Token::of_ingest).transpose()?;
    let addresses = resolve(&args.listen).await?;
    guard(&args.listen, &addresses, token.is_some() || args.no_token)?;
    let admin = admin::address(args.admin.as_deref(), in_memory)?;

    let writer =
        WriterOptions { shards: args.shards.0, ops_max: args.writer_ops, ..WriterOptions::default() };
    let options = RuntimeOptions { writer, ..RuntimeOptions::default() };
    let builder =
        targets::configure(Outhaul::builder(data), &to, &args.target, &args.store, data).runtime(options);
    let outhaul = tokio::select! {
        opened = builder.open() => opened.map_err(|e| targets::explain(e, &to))?,
        () = signals.stop() => return Ok(Exit::Done),
    };
    let bound = async {
        let listener = bind(&args.listen, &addresses).await?;
        let admin = match admin {
            Some(address) => Some(admin::bind(address, data).await?),
            None => None,
        };
        Ok((listener, admin))
    };
    let (listener, admin) = match bound.await {
        Ok(bound) => bound,
        Err(error) => {
            // Deliveries of what was left have begun.
            outhaul.shutdown(DRAIN_UNBOUND.min(outhaul.longest_deadline())).await?;
            return Err(error);
        }
    };
    let address = listener.local_addr().map_err(|e| unbound(&args.listen, &e))?;
    let reader = Reader::new("outhaul:http", args.target.pid_field.clone());
    let app = Arc::new(App::new(outhaul.clone(), token, reader, address));
    tell_found(&outhaul, data, console);
    if let Some(told) = data_dir::promise(&args.store) {
        console.say(told);
    }
    if let Some(admin) = &admin {
        let token = data.join("admin.token");
        console.say(format_args!("admin API on http://{} (token in {})", admin.address, token.display()));
    }
    console.say(format_args!("listening on http://{address}"));
    let relay = Relay { outhaul, app, signals, hangup, console: console.clone() };
    relay.work(listener, admin, args.drain_timeout, (!in_memory).then_some(data.as_path())).await
}

/// An open relay.
struct Relay {
    outhaul: Outhaul,
    app: Arc<App>,
    signals: Signals,
    hangup: Signal,
    console: Console,
}

impl Relay {
    async fn work(
        mut self,
        listener: TcpListener,
        admin: Option<admin::Listening>,
        drain: Option<Duration>,
        data: Option<&Path>,
    ) -> Result<Exit, CliError> {
        let (stop, stopped) = watch::channel(None);
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(Server::new(router::router(Arc::clone(&self.app))).serve(listener, stopped.clone()));
        if let Some(admin) = admin {
            let app = Arc::new(Admin::new(self.outhaul.clone(), admin.token));
            serving.spawn(Server::new(admin::router(app)).serve(admin.listener, stopped));
        }
        loop {
            tokio::select! {
                () = self.signals.stop() => break,
                Some(()) = self.hangup.recv() => {
                    tokio::select! {
                        () = self.outhaul.reopen() => self.console.say("reloaded: files were opened anew"),
                        () = self.signals.stop() => break,
                    }
                }
            }
        }
        let drain = drain.unwrap_or_else(|| self.outhaul.longest_deadline());
        self.console.say(format_args!("stopping, within {drain:?}; a second signal ends it at once"));
        self.app.stop();
        stop.send_replace(Some(Instant::now() + drain));
        let ended = tokio::select! {
            (ended, _) = async { tokio::join!(self.outhaul.shutdown(drain), serving.join_all()) } => ended,
            () = self.signals.stop() => {
                self.console.say("ended at once; what was acknowledged is on disk");
                // The process ends next. What would be told about parts that nobody closed is nobody's business.
                std::mem::forget(self.outhaul);
                return Ok(Exit::Interrupted);
            }
        };
        let report = ended?;
        if report.waiting.is_empty() {
            self.console.say("stopped; nothing waits");
        }
        for (target, waiting) in report.waiting {
            match data {
                Some(data) => {
                    let stay = counted(waiting, "entry stays", "entries stay");
                    self.console.say(format_args!("stopped; {target}: {stay} in {}", data.display()));
                }
                None => {
                    let gone = counted(waiting, "entry is", "entries are");
                    self.console.say(format_args!("stopped; {target}: {gone} gone with the memory"));
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// Tells what recovery found, and what is in the failed store.
fn tell_found(outhaul: &Outhaul, data: &Path, console: &Console) {
    let report = outhaul.report();
    if let Some(told) = torn(&report) {
        console.say(told);
    }
    console.tell_damage(&report, &data.display().to_string());
    let failed = outhaul.failed().count(None);
    if failed > 0 {
        let data = quoted(&data.display().to_string());
        let events = counted(failed, "event is", "events are");
        console.say(format_args!("{events} in the failed store (outhaul failed ls --data {data})"));
    }
}

async fn resolve(listen: &str) -> Result<Vec<SocketAddr>, CliError> {
    let wrong = |why: String| {
        CliError::new(Exit::Wrong, "the address to listen on is not valid")
            .at(format!("--listen {listen}"))
            .because(why)
            .help("write an address and a port, such as 127.0.0.1:7070 or [::1]:7070")
    };
    if listen.parse::<SocketAddr>().is_err() {
        let port = listen.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(wrong("it is no address with a port from 0 to 65535".to_owned()));
        }
    }
    let found: Vec<_> = lookup_host(listen).await.map_err(|e| wrong(e.to_string()))?.collect();
    if found.is_empty() {
        return Err(wrong("the name has no address".to_owned()));
    }
    Ok(found)
}

/// An address that others can reach needs a word about who may send.
fn guard(listen: &str, addresses: &[SocketAddr], allowed: bool) -> Result<(), CliError> {
    let loopback = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(v4) => v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
    };
    if allowed || addresses.iter().all(loopback) {
        return Ok(());
    }
    Err(CliError::new(Exit::Wrong, "others can reach this address, and no token protects it")
        .at(format!("--listen {listen}"))
        .because("it is no loopback address, so anybody in the network could send events")
        .help("name a file that holds a bearer token with `--token-file FILE`, or allow everybody with `--no-token`"))
}

async fn bind(listen: &str, addresses: &[SocketAddr]) -> Result<TcpListener, CliError> {
    TcpListener::bind(addresses).await.map_err(|e| unbound(listen, &e))
}

fn unbound(listen: &str, error: &std::io::Error) -> CliError {
    CliError::new(Exit::Failed, format!("cannot listen on {listen}"))
        .because(error.to_string())
        .help("end what listens there, or choose another address with `--listen`; port 0 takes a free one")
}
