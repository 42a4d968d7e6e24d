//! [`Console`]: everything that a person reads on standard error. Standard output belongs to the events.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use outhaul::OpenReport;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::error::{CliError, Exit};

/// Standard error with a bar at its end, if it is a terminal. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Console {
    bar: ProgressBar,
}

impl Console {
    pub(crate) fn new() -> Self {
        Self { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()) }
    }

    /// Sends logs and faults here. `OUTHAUL_LOG` chooses what is logged, as in `info` or `outhaul_runtime=debug`.
    pub(crate) fn install(&self, relay: bool) {
        let level = if relay { "info" } else { "warn" };
        let filter = EnvFilter::builder()
            .with_env_var("OUTHAUL_LOG")
            .with_default_directive(level.parse().unwrap_or_default())
            .from_env_lossy();
        let ansi = io::stderr().is_terminal();
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_target(false);
        // It is set once per process, here.
        logs.with_writer(self.clone()).try_init().unwrap_or_default();
        let console = self.clone();
        std::panic::set_hook(Box::new(move |fault| {
            let place = fault.location().map(ToString::to_string).unwrap_or_default();
            let why = fault.payload_as_str().unwrap_or("no text").to_owned();
            let error = CliError::new(Exit::Failed, "a fault in outhaul itself")
                .at(place)
                .because(why)
                .help("report it with these lines; what was acknowledged is safe on disk");
            console.say(error);
        }));
    }

    /// Writes one line, or one block. If nobody reads standard error, nobody misses it.
    pub(crate) fn say(&self, text: impl Display) {
        self.bar.suspend(|| writeln!(io::stderr().lock(), "{text}").unwrap_or_default());
    }

    /// Tells what is damaged; false if nothing is.
    pub(crate) fn tell_damage(&self, report: &OpenReport, data: &str) -> bool {
        for found in &report.damage {
            let copy = found.quarantined.as_ref().map(|path| format!("; a copy is in {}", path.display()));
            self.say(format_args!(
                "damage: {} at {} of {} in {data}: {}; a person should look at it{}",
                counted(found.length, "byte", "bytes"),
                found.offset,
                found.file,
                found.reason,
                copy.unwrap_or_default()
            ));
        }
        !report.damage.is_empty()
    }

    /// Writes an error, and passes its exit code on.
    pub(crate) fn fail(&self, error: &CliError) -> Exit {
        self.say(error);
        error.exit
    }

    /// Starts the bar, if standard error is a terminal.
    pub(crate) fn start_bar(&self) {
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
        self.set_style("{spinner} {elapsed} {wide_msg}");
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Moves the bar. With a total it becomes a real one.
    pub(crate) fn progress(&self, done: u64, total: Option<u64>, message: String) {
        if let Some(total) = total
            && self.bar.length() != Some(total)
        {
            self.bar.set_length(total);
            self.set_style("{spinner} {elapsed} {bar:20} {pos}/{len} {wide_msg}");
        }
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Takes the bar away.
    pub(crate) fn end_bar(&self) {
        self.bar.finish_and_clear();
    }

    fn set_style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }
}

impl Write for Console {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.bar.suspend(|| io::stderr().lock().write_all(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Console {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What clap has to say: help and version on standard output, errors on standard error with code 2.
pub(crate) fn clap(told: &clap::Error) -> ExitCode {
    told.print().unwrap_or_default();
    if told.use_stderr() { Exit::Wrong.into() } else { Exit::Done.into() }
}

/// A number with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// What a person is told about an unfinished write; None if there was none.
pub(crate) fn torn(report: &OpenReport) -> Option<String> {
    let bytes = report.torn_bytes;
    (bytes > 0).then(|| {
        let bytes = counted(bytes, "byte", "bytes");
        format!(
            "note: an unfinished write of {bytes} was cut off the log: normal after a crash, nothing is lost"
        )
    })
}

/// A path or text as a shell takes it.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use outhaul::OpenReport;

    use super::{counted, quoted, torn};

    #[test]
    fn one_is_told_from_many() {
        let counts = [0, 1, 2].map(|count| counted(count, "entry", "entries"));
        assert_eq!(counts, ["0 entries", "1 entry", "2 entries"]);
    }

    #[test]
    fn an_unfinished_write_is_told_with_its_length() {
        assert_eq!(torn(&OpenReport::default()), None);
        let told = torn(&OpenReport { torn_bytes: 1, ..OpenReport::default() }).unwrap();
        assert!(told.contains("an unfinished write of 1 byte was cut off"), "{told}");
    }

    #[test]
    fn a_shell_takes_what_is_quoted() {
        assert_eq!(quoted("/tmp/a-b.c"), "/tmp/a-b.c");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
