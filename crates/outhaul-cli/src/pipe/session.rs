//! [`Session`]: one run of `pipe` over an open data directory.

mod admit;
mod end;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use outhaul::Outhaul;
use outhaul::event::TargetName;
use outhaul::runtime::RuntimeOptions;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::feed::{Chunk, End, Fed, Feed};
use super::note::Resume;
use super::summary::Summary;
use super::watch::{Cut, Watch};
use crate::args::PipeArgs;
use crate::console::{Console, counted, torn};
use crate::data_dir;
use crate::error::{CliError, Exit};
use crate::signals::Signals;
use crate::targets::{self, To};
use crate::value::Reader;

/// Chunks that are read ahead of the disk.
const CHUNKS_AHEAD: usize = 4;
/// Lines that are admitted together, in chunks that were read one by one.
const LINES_TOGETHER: u64 = 1_000;

pub(crate) struct Session {
    watch: Watch,
    fed: mpsc::Receiver<Fed>,
    /// Read and not used yet.
    next: Option<Fed>,
    summary: Summary,
    timeout: Option<Duration>,
    /// Whether the data directory stays, and with it how far the input was read.
    keeps: bool,
    /// Whether the input was read to its end, or to its first bad line.
    input_ended: bool,
    /// Events that a full target missed.
    shed: BTreeMap<TargetName, u64>,
    /// When a person was last told that it waits for room.
    stall_told: Option<Instant>,
}

/// Why no more of the input is admitted, or no more is waited for.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The wait was cut short.
    Cut(Cut),
    /// It cannot go on.
    Error(CliError),
    /// An event can never be taken: a bad line, found later.
    BadEvent(CliError),
}

impl From<Cut> for Halt {
    fn from(cut: Cut) -> Self {
        Self::Cut(cut)
    }
}

impl Session {
    /// Opens the data directory and starts to read. None: it was interrupted before that.
    pub(crate) async fn open(
        args: &PipeArgs,
        to: &[To],
        data: &Path,
        console: &Console,
    ) -> Result<Option<Self>, CliError> {
        let mut signals = Signals::with_hangup()?;
        // A receiver that refuses everything is no reason to wait: the failed store has the answer.
        let options = RuntimeOptions { reject_hold: None, ..RuntimeOptions::default() };
        let builder =
            targets::configure(Outhaul::builder(data), to, &args.target, &args.store, data).runtime(options);
        let outhaul = tokio::select! {
            opened = builder.open() => opened.map_err(|e| targets::explain(e, to))?,
            () = signals.stop() => return Ok(None),
        };
        let resume = match outhaul.input().filter(|_| !args.from_start) {
            None => None,
            Some(input) => Some(Resume::read(&input).ok_or_else(|| {
                CliError::new(Exit::Wrong, "what the data directory remembers of its input cannot be read")
                    .at(data.display().to_string())
                    .because("another version of outhaul wrote it")
                    .help("use that version, or read the input from its first line with `--from-start`")
            })?),
        };
        if let Some(told) = torn(&outhaul.report()) {
            console.say(told);
        }
        if let Some(told) = data_dir::promise(&args.store) {
            console.say(told);
        }
        if std::io::stdin().is_terminal() {
            console.say("reading events from the terminal, one a line; Ctrl-D ends the input");
        }
        console.start_bar();
        let reader = Reader::new("outhaul:pipe", args.target.pid_field.clone());
        let fed = start_feed(reader, resume)?;
        let watch = Watch::new(outhaul, console.clone(), signals);
        Ok(Some(Self {
            watch,
            fed,
            next: None,
            summary: Summary::default(),
            timeout: args.timeout,
            keeps: args.data.is_some(),
            input_ended: false,
            shed: BTreeMap::new(),
            stall_told: None,
        }))
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Admits the input and waits until it is delivered, then closes the data directory.
    pub(crate) async fn work(&mut self) -> Exit {
        let exit = match self.admit_all().await {
            Ok(exit) => exit.and(self.deliver().await),
            Err(halt) => self.halted(halt),
        };
        exit.and(self.close(exit).await)
    }

    /// Admits what is read, to its end. A bad line ends it too: what was read before it is delivered.
    async fn admit_all(&mut self) -> Result<Exit, Halt> {
        loop {
            let fed = match self.next.take() {
                Some(fed) => Some(fed),
                None => self.watch.until(self.fed.recv(), None, false, &mut self.summary).await?,
            };
            match fed {
                Some(Fed::Chunk(chunk)) => {
                    let chunk = self.gather(chunk);
                    self.summary.read += chunk.read;
                    self.summary.skipped += chunk.skipped;
                    match self.admit(chunk).await {
                        Err(Halt::BadEvent(error)) => {
                            self.input_ended = true;
                            return Ok(self.watch.console.fail(&error));
                        }
                        admitted => admitted?,
                    }
                }
                Some(Fed::End(end)) => return self.input_ended(end),
                Some(Fed::OtherInput) => self.watch.console.say(
                    "note: this input is not the one that the data directory remembers; it is read from its first \
                     line",
                ),
                Some(Fed::SameInput { lines }) => self.watch.console.say(format_args!(
                    "note: this input is known; it goes on behind the {} that were read before",
                    counted(lines, "line", "lines")
                )),
                None => return self.input_ended(End::Unwanted),
            }
        }
    }

    /// Adds the chunks that are there already, so that they share a sync.
    fn gather(&mut self, mut chunk: Chunk) -> Chunk {
        while let Ok(fed) = self.fed.try_recv() {
            match fed {
                Fed::Chunk(more)
                    if chunk.read + more.read <= LINES_TOGETHER
                        && chunk.note.is_some() == more.note.is_some() =>
                {
                    chunk.note = match (chunk.note, more.note) {
                        (Some(first), Some(last)) => Some(last.from(first.start)),
                        _ => None,
                    };
                    chunk.events.extend(more.events);
                    chunk.read += more.read;
                    chunk.skipped += more.skipped;
                }
                other => {
                    self.next = Some(other);
                    break;
                }
            }
        }
        chunk
    }

    fn input_ended(&mut self, end: End) -> Result<Exit, Halt> {
        self.input_ended = matches!(end, End::Done | End::Bad { .. });
        let error = match end {
            End::Done => return Ok(Exit::Done),
            End::Bad { line, column, message } => {
                let error = CliError::new(Exit::Wrong, "a line of the input is no event")
                    .at(format!("line {line}, column {column}"))
                    .because(message)
                    .help(match self.keeps {
                        true => {
                            "the lines before it are safe and are delivered; correct it and run again with the same \
                             `--data`: it goes on at this line"
                        }
                        false => {
                            "the lines before it are safe and are delivered; correct it and send the rest. With \
                             `--data DIR`, a second run over the same input goes on at this line by itself"
                        }
                    });
                return Ok(self.watch.console.fail(&error));
            }
            End::Io(error) => {
                let error = CliError::new(Exit::Failed, "standard input cannot be read to its end")
                    .because(error.to_string())
                    .help("the lines before that are safe and are delivered");
                return Ok(self.watch.console.fail(&error));
            }
            End::Differs { lines, short } => {
                let why = match short {
                    true => format!("it ends before line {lines}, up to which it was read before"),
                    false => {
                        let first = counted(lines, "line", "lines");
                        format!("its beginning ({first}) is not what was read before")
                    }
                };
                CliError::new(
                    Exit::Wrong,
                    "the input begins like the one that was read before, and is another one",
                )
                .because(why)
                .help("nothing of it was admitted; to read it from its first line, add `--from-start`")
            }
            End::Unwanted => CliError::new(Exit::Failed, "the input is not read any more"),
        };
        Err(Halt::Error(error))
    }

    /// Waits until nothing waits for the targets that were given.
    async fn deliver(&mut self) -> Exit {
        let targets = self.watch.outhaul.targets();
        self.watch.total = Some(targets.iter().map(|t| t.delivered + t.failed + t.waiting).sum());
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let outhaul = self.watch.outhaul.clone();
        match self.watch.until(outhaul.settled(), deadline, true, &mut self.summary).await {
            Ok(()) => Exit::Done,
            Err(cut) => self.halted(cut.into()),
        }
    }
}

/// Starts the thread that reads standard input. It ends with the input, or with the process: a read cannot be cut
/// short.
fn start_feed(reader: Reader, resume: Option<Resume>) -> Result<mpsc::Receiver<Fed>, CliError> {
    let (send, fed) = mpsc::channel(CHUNKS_AHEAD);
    let send = move |fed| send.blocking_send(fed).is_ok();
    let read = move || Feed::new(std::io::stdin(), reader, send).run(resume.as_ref());
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(read)
        .map_err(|e| CliError::new(Exit::Failed, "cannot start a thread").because(e.to_string()))?;
    Ok(fed)
}
