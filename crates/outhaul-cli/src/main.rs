//! `outhaul`: takes events from standard input or over HTTP, makes them safe on disk, and delivers each of them to its
//! targets.

// Requests of many megabytes come and go: the C library's allocator gives hardly any of that back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod args;
mod at_rest;
mod check;
mod console;
mod data_dir;
mod error;
mod failed;
mod import;
mod ops;
mod output;
mod pipe;
mod queue;
mod run;
mod signals;
mod targets;
mod text;
mod value;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Verb};
use console::Console;
use error::{CliError, Exit};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(told) => return console::clap(&told),
    };
    let console = Console::new();
    console.install(matches!(args.verb, Verb::Run(_)));
    // A fault of our own is told by the hook; what was acknowledged is on disk.
    let exit = std::panic::catch_unwind(AssertUnwindSafe(|| work(args, &console)));
    ExitCode::from(exit.unwrap_or(Exit::Failed))
}

fn work(args: Args, console: &Console) -> Exit {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let told = CliError::new(Exit::Failed, "cannot start").because(error.to_string());
            return console.fail(&told);
        }
    };
    let exit = runtime.block_on(async {
        match args.verb {
            Verb::Pipe(args) => Box::pin(pipe::run(&args, console)).await,
            Verb::Run(args) => Box::pin(run::run(&args, console)).await,
            Verb::Failed(args) => Box::pin(failed::run(&args, console)).await,
            Verb::Import(args) => Box::pin(import::run(&args, console)).await,
            Verb::Check(args) => Box::pin(check::run(&args, console)).await,
            Verb::Queue(args) => Box::pin(queue::run(&args, console)).await,
        }
    });
    // Whatever still blocks (a file on a dead mount) is left to the operating system.
    runtime.shutdown_background();
    exit
}
