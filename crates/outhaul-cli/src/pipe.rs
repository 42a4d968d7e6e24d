//! `outhaul pipe`: standard input, made safe and delivered.

mod data;
mod feed;
mod lines;
mod note;
mod session;
mod summary;
mod watch;

use std::time::Instant;

use crate::args::PipeArgs;
use crate::console::Console;
use crate::error::{CliError, Exit};
use crate::targets;
use data::DataDir;
use session::Session;
use summary::Summary;

/// Runs it. Whatever ends it, the last line on standard error is the summary.
pub(crate) async fn run(args: &PipeArgs, console: &Console) -> Exit {
    let started = Instant::now();
    let mut summary = Summary::default();
    let exit = match whole(args, console, &mut summary).await {
        Ok(exit) => exit,
        Err(error) => console.fail(&error),
    };
    console.end_bar();
    console.say(summary.line(args.summary, started.elapsed()));
    exit
}

async fn whole(args: &PipeArgs, console: &Console, summary: &mut Summary) -> Result<Exit, CliError> {
    let to = targets::read(&args.target, "outhaul pipe --to stdout: < events.ndjson")?;
    let data = DataDir::new(args.data.as_deref(), &args.store)?;
    let mut session = match Box::pin(Session::open(args, &to, data.path(), console)).await {
        Ok(Some(session)) => session,
        Ok(None) => {
            data.remove_if_new(console);
            return Ok(Exit::Interrupted);
        }
        Err(error) => {
            data.remove_if_new(console);
            return Err(error);
        }
    };
    let exit = Box::pin(session.work()).await;
    *summary = session.summary().clone();
    let exit = session.conclude(exit, &data, &to);
    Ok(exit)
}
