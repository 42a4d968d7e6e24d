//! `outhaul check`: looks at targets, and changes nothing.

use std::io::{self, Write};
use std::sync::Arc;

use outhaul::target::{Target, TargetUri};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::console::Console;
use crate::error::{CliError, Exit};
use crate::targets::{self, To};

/// What was found out about one target.
#[derive(Serialize)]
struct Finding {
    to: String,
    kind: Option<&'static str>,
    ok: bool,
    error: Option<String>,
    help: Option<String>,
    notes: Vec<String>,
    #[serde(skip)]
    exit: u8,
}

pub(crate) async fn run(args: &CheckArgs, console: &Console) -> Exit {
    let mut exit = Exit::Done;
    for text in &args.to {
        let found = match targets::read_one(text) {
            Ok(to) => look(&to, args.connect).await,
            Err(error) => {
                exit = exit.and(console.fail(&error));
                continue;
            }
        };
        exit = exit.and(match found.exit {
            0 => Exit::Done,
            2 => Exit::Wrong,
            _ => Exit::Attention,
        });
        if let Err(error) = show(&found, args.json) {
            return match error.kind() {
                // Whoever reads standard output has seen enough.
                io::ErrorKind::BrokenPipe => exit,
                _ => console.fail(
                    &CliError::new(Exit::Failed, "cannot write to standard output")
                        .because(error.to_string()),
                ),
            };
        }
    }
    exit
}

async fn look(to: &To, connect: bool) -> Finding {
    let mut finding = Finding {
        to: to.shown().to_owned(),
        kind: None,
        ok: true,
        error: None,
        help: None,
        notes: Vec::new(),
        exit: 0,
    };
    let made = TargetUri::parse(to.uri()).and_then(outhaul::target_of);
    let target: Arc<dyn Target> = match made {
        Ok((target, _)) => target,
        Err(error) => {
            finding.ok = false;
            finding.error = Some(format!("{}: {}", error.what(), error.why()));
            finding.help = Some(error.help().to_owned());
            finding.exit = 2;
            return finding;
        }
    };
    finding.kind = Some(target.kind());
    if connect {
        match target.check().await {
            Ok(notes) => finding.notes = notes,
            Err(error) => {
                finding.ok = false;
                finding.error = Some(format!("{}: {}", error.kind().reason(), error.detail()));
                finding.exit = 3;
            }
        }
        // It was only looked at: what cannot be closed ends with this process.
        drop(target.close().await);
    }
    finding
}

fn show(found: &Finding, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, found)?;
        return writeln!(out);
    }
    match &found.error {
        None => writeln!(out, "{}: ok ({})", found.to, found.kind.unwrap_or_default())?,
        Some(error) => writeln!(out, "{}: {error}", found.to)?,
    }
    if let Some(help) = &found.help {
        writeln!(out, "  help: {help}")?;
    }
    found.notes.iter().try_for_each(|note| writeln!(out, "  note: {note}"))
}
