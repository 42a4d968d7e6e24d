//! The command line.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use outhaul::store::{Durability, Engine};

use crate::value::PidField;

const EXIT_CODES: &str = "\
Exit codes of every verb:
  0    done
  1    could not: I/O, a data directory in use, a full disk
  2    wrong input: usage, configuration, an event
  3    done, but a person is needed: failed events, damage
  4    stopped with entries left; they stay on disk
  130  interrupted; nothing acknowledged is lost
Where several apply, the first of 130, 2, 1, 4, 3 counts.";

const OPTIONS: &str = "\
Options of a target are query parameters of its URI, such as https://example.com/hook?outhaul.timeout=5s:
  outhaul.KEY=VALUE; all of them, with what they do, are in docs/tools.md, \"Options of a target\". KEY=default:
  whether it sends  enabled=true|false (false: it queues, and sends nothing)
  what is sent      format=cloudevents|body|s3
  attempts          timeout=30s, connect_timeout=5s, in_flight=16, batch=100, batch_bytes=1MiB, linger=none
  how much          rate=none (events a second), rate_bytes=none (bytes a second)
  waits             backoff=1s, backoff_max=5m, retry_after_max=1h; while it is held trial_backoff=500ms,
                    trial_backoff_max=60s
  giving up         attempts_max=none, age_max=none, on_exhausted=keep|fail, on_reject=continue|stop_pid
  what may wait     queue_entries=10000000, queue_bytes=the smaller of 10GiB and a quarter of the file system,
                    when_full=refuse|shed|overflow
  what may have     failed_entries=100000, failed_bytes=1GiB, failed_full=hold_target|discard_oldest,
  failed            failed_expire_after=never; failed_compat=rustfs: 10000 entries, 72h, discard_oldest instead
  Of several words the first is the default. Durations are written 250ms, 30s, 5m, 72h; sizes 64KiB, 1MiB.";

const AT_REST: &str = "The data directory has to be at rest: no `outhaul run` or `outhaul pipe` uses it.";

/// Takes events, makes them safe on disk, and delivers each of them, at least once and in order per key.
#[derive(Parser)]
#[command(name = "outhaul", version, max_term_width = 100, arg_required_else_help = true, after_help = EXIT_CODES)]
#[command(after_long_help = format!(
    "Examples:
  outhaul pipe --to file:delivered.ndjson < events.ndjson
  outhaul run --data ./outhaul-data --to https://example.com/hook
  outhaul failed ls --data ./outhaul-data
  outhaul queue stat --data ./outhaul-data

{EXIT_CODES}

The environment variable OUTHAUL_LOG chooses what is logged on standard error: error, warn, info, debug."
))]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    Pipe(PipeArgs),
    Run(RunArgs),
    Failed(FailedArgs),
    Queue(QueueArgs),
    Check(CheckArgs),
    Import(ImportArgs),
}

/// Deliver the events that standard input holds, one JSON value a line, and end
///
/// Each line is one of CloudEvents (an object with `specversion`) or any other JSON value, which becomes the data of
/// an event. Lines are made safe on disk before they are delivered. Run again with the same --data after a crash, it
/// delivers what was left and goes on behind the lines that were already admitted.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul pipe --to file:delivered.ndjson < events.ndjson
  outhaul pipe --to hook=https://example.com/hook --to log=file:log.ndjson --data ./data < events.ndjson
  producer | outhaul pipe --to https://example.com/hook --pid-field order_id --timeout 5m
  outhaul pipe --to stdout:?outhaul.format=body --summary json < events.ndjson

{OPTIONS}

The last line on standard error:
  read=N skipped=N durable=N delivered=N retried=N failed=N waiting=N seconds=S
  read       lines read
  skipped    of these: already admitted by an earlier run, or blank
  durable    entries (event x target) that were made safe by this run
  delivered, retried, failed, waiting
             entries, and attempts to be made again, over all targets

{EXIT_CODES}"
))]
pub(crate) struct PipeArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Where events are kept until they are delivered [default: a new temporary directory, removed when empty]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// How the last line on standard error is written
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(crate) summary: SummaryForm,
    /// How long to wait for deliveries, such as 30s or 5m [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = outhaul::target::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Read the input from its first line, even if an earlier run admitted a part of it
    #[arg(long)]
    pub(crate) from_start: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryForm {
    /// key=value pairs
    Text,
    /// One JSON object
    Json,
}

/// Run the relay: take events over HTTP and deliver them until it is told to stop
///
/// `POST /events` answers 202 when the events are safe on disk. `GET /targets` shows the state of each target,
/// `/healthz` and `/readyz` are for supervisors; the admin API (docs/runtime.md) pauses, drains, replaces and removes
/// targets, and decides about entries. SIGTERM and SIGINT end it in order, SIGHUP opens `file:` targets anew.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul run --data ./outhaul-data --to https://example.com/hook
  outhaul run --data ./outhaul-data --to billing=https://example.com/hook --to audit=file:audit.ndjson
  outhaul run --data ./outhaul-data --to billing=@billing.uri --listen 0.0.0.0:7070 --token-file ./token

  curl -H 'content-type: application/json' -d '{{\"hello\":\"world\"}}' http://127.0.0.1:7070/events
  curl -H \"authorization: Bearer $(cat ./outhaul-data/admin.token)\" http://127.0.0.1:7071/api/v1/targets

{OPTIONS}

{EXIT_CODES}
After SIGTERM or SIGINT it ends with 0; a second signal ends it at once, with 130."
))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Where events are kept until they are delivered [default: none; needed but with --engine memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Requests must carry the bearer token that this file holds [default: no token, on a loopback address alone]
    #[arg(long, value_name = "FILE", conflicts_with = "no_token")]
    pub(crate) token_file: Option<PathBuf>,
    /// The address of the admin API, or off. Its token is in the file admin.token of the data directory [default:
    /// 127.0.0.1:7071; off with the engine memory]
    #[arg(long, value_name = "ADDR|off")]
    pub(crate) admin: Option<String>,
    /// Take events from anybody who reaches an address that is not loopback
    #[arg(long)]
    pub(crate) no_token: bool,
    /// How long attempts in flight may take when the relay stops [default: the longest deadline of the targets]
    #[arg(long, value_name = "DURATION", value_parser = outhaul::target::duration)]
    pub(crate) drain_timeout: Option<Duration>,
    /// Lanes in which events wait to be written, by the hash of their pid. The log has one committer, so more than one
    /// helps only where taking events in is the bound
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) shards: ShardCount,
    /// Events that may wait to be written, over all shards; above it requests are refused with 503 and a Retry-After.
    /// A request with more than a shard's part of that is taken when nothing else waits
    #[arg(long, value_name = "N", default_value_t = OPS_MAX)]
    pub(crate) writer_ops: NonZeroUsize,
}

/// Events that may wait to be written: a few of the largest requests.
const OPS_MAX: NonZeroUsize = NonZeroUsize::new(4 * crate::run::EVENTS_MAX).expect("it is not zero");

/// From 1 to 256: each has a task and a part of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardCount(pub(crate) NonZeroU64);

impl FromStr for ShardCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|count: &NonZeroU64| count.get() <= 256);
        count.map(Self).ok_or_else(|| "write a number from 1 to 256".to_owned())
    }
}

/// What `pipe` and `run` know about targets and events.
#[derive(clap::Args)]
pub(crate) struct TargetArgs {
    #[arg(long = "to", value_name = "[NAME=]URI")]
    #[arg(
        help = "A target: file:PATH, stdout:, https://…, nats://…, redis://…, mqtt://…, amqp://…; @FILE reads the URI from a file; its options are \
            in --help [default: none; one is needed]"
    )]
    pub(crate) to: Vec<String>,
    /// Send entries that wait for this target to its new destination [default: refused]
    #[arg(long, value_name = "NAME")]
    pub(crate) repoint: Vec<String>,
    /// The member, or the JSON pointer (/a/b), whose value is the key within which order holds. In a `CloudEvent`
    /// its own partitionkey wins; without one the event is searched, then its data [default: none]
    #[arg(long, value_name = "NAME", value_parser = PidField::parse)]
    pub(crate) pid_field: Option<PidField>,
}

/// How `pipe` and `run` keep events.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// How events are kept: journal, one log; spool, a directory for each target, as RustFS has it; or memory, which
    /// keeps nothing on disk. A data directory belongs to one engine; without this option it is that of the directory,
    /// and journal for a new one [default: that of the directory]
    #[arg(long = "engine", value_name = "ENGINE", value_parser = values::engine)]
    pub(crate) asked: Option<Engine>,
    /// What an acknowledgement promises: synced, interval:DURATION (synced within that time) or buffered (written
    /// when the system likes). Under the last two a loss of power may lose acknowledged events
    #[arg(long, value_name = "MODE", default_value = "synced", value_parser = values::durability)]
    pub(crate) durability: Durability,
}

/// Look after the events that could not be delivered: list, show, requeue, discard, export
///
/// The data directory has to be at rest: no `outhaul run` or `outhaul pipe` uses it.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul failed ls --data ./outhaul-data
  outhaul failed ls --data ./outhaul-data --target billing --json
  outhaul failed show --data ./outhaul-data billing:42
  outhaul failed requeue --data ./outhaul-data billing:42 billing:43
  outhaul failed discard --data ./outhaul-data --older-than 30d
  outhaul failed export --data ./outhaul-data > failed.ndjson

{EXIT_CODES}"
))]
pub(crate) struct FailedArgs {
    #[command(subcommand)]
    pub(crate) verb: FailedVerb,
}

#[derive(Subcommand)]
pub(crate) enum FailedVerb {
    /// List failed entries, one a line
    #[command(
        after_long_help = "Example:\n  outhaul failed ls --data ./outhaul-data --target billing --newest-first"
    )]
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Begin with the entry that was admitted last
        #[arg(long)]
        newest_first: bool,
        /// List so many at most [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<NonZeroUsize>,
        /// Go on behind this entry [default: from the first]
        #[arg(long, value_name = "UID")]
        after: Option<String>,
    },
    /// Show failed entries with their events
    #[command(after_long_help = "Example:\n  outhaul failed show --data ./outhaul-data billing:42")]
    Show {
        /// Which, as `failed ls` names them, such as billing:42 [default: all]
        #[arg(value_name = "UID")]
        uids: Vec<String>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Put failed entries back into their queues; they are delivered when `run` or `pipe` is started
    #[command(
        after_long_help = "Attempts and age begin anew. Asking again changes nothing and answers the same.\n\n\
        Example:\n  outhaul failed requeue --data ./outhaul-data --all --target billing"
    )]
    Requeue {
        /// Which, as `failed ls` names them, such as billing:42
        #[arg(value_name = "UID", required_unless_present = "all")]
        uids: Vec<String>,
        /// All of them, or all of `--target`
        #[arg(long, conflicts_with = "uids")]
        all: bool,
        #[command(flatten)]
        filter: Filter,
    },
    /// Remove failed entries for good
    #[command(
        after_long_help = "Example:\n  outhaul failed discard --data ./outhaul-data --older-than 30d --target billing"
    )]
    Discard {
        /// Which, as `failed ls` names them, such as billing:42
        #[arg(value_name = "UID", required_unless_present_any = ["all", "older_than"])]
        uids: Vec<String>,
        /// All of them, or all of `--target`
        #[arg(long, conflicts_with_all = ["uids", "older_than"])]
        all: bool,
        /// Those that failed longer ago than this, such as 72h or 30d [default: whenever]
        #[arg(long, value_name = "DURATION", conflicts_with = "uids", value_parser = outhaul::target::duration)]
        older_than: Option<Duration>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Write failed entries with their events to standard output, one JSON object a line
    #[command(
        after_long_help = "Example:\n  outhaul failed export --data ./outhaul-data --target billing > failed.ndjson"
    )]
    Export {
        #[command(flatten)]
        place: Place,
    },
}

/// Check targets before events are given to them: their URIs, and with --connect whether they could be delivered to
///
/// Nothing is changed, anywhere. One line a target on standard output; what is worth knowing about it follows, indented.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul check --to https://example.com/hook
  outhaul check --connect --to billing=https://example.com/hook --to 'nats://localhost/orders.{{type}}?outhaul.stream=ORDERS'

{OPTIONS}

It ends with 0 when all is well, with 2 when a URI is wrong, with 3 when a target could not be delivered to now.

{EXIT_CODES}"
))]
pub(crate) struct CheckArgs {
    /// What to check: [NAME=]URI, or [NAME=]@FILE with a file that holds the URI. May be given several times
    #[arg(long, value_name = "[NAME=]URI", required = true)]
    pub(crate) to: Vec<String>,
    /// Open each target: the connection, TLS, credentials, and what the protocol has of stream, topic or table
    #[arg(long)]
    pub(crate) connect: bool,
    /// Write one JSON object a target: {to, kind, ok, error, help, notes}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look into the queues of a data directory, check it and mend it
///
/// The data directory has to be at rest: no `outhaul run` or `outhaul pipe` uses it.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul queue stat --data ./outhaul-data
  outhaul queue ls --data ./outhaul-data --target billing --limit 20
  outhaul queue show --data ./outhaul-data billing:42
  outhaul queue verify --data ./outhaul-data
  outhaul queue repair --data ./outhaul-data
  outhaul queue export --data ./outhaul-data --target billing > waiting.ndjson

{AT_REST}

{EXIT_CODES}"
))]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    pub(crate) verb: QueueVerb,
}

#[derive(Subcommand)]
pub(crate) enum QueueVerb {
    /// Count what waits: entries, bytes, the oldest, and how much of the disk it takes
    #[command(after_long_help = "Example:\n  outhaul queue stat --data ./outhaul-data --json")]
    Stat(Filter),
    /// List waiting entries, one a line
    #[command(
        after_long_help = "Example:\n  outhaul queue ls --data ./outhaul-data --target billing --limit 20"
    )]
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// List so many at most, of all queues together
        #[arg(long, value_name = "N", default_value = "1000")]
        limit: NonZeroUsize,
        /// Go on behind this entry, with the next one of its queue [default: from the first]
        #[arg(long, value_name = "UID")]
        after: Option<String>,
    },
    /// Show a waiting entry with its event
    #[command(after_long_help = "Example:\n  outhaul queue show --data ./outhaul-data billing:42")]
    Show {
        /// Which, as `queue ls` names it, such as billing:42
        #[arg(value_name = "UID")]
        uid: String,
        #[command(flatten)]
        filter: Filter,
    },
    /// Check everything that is stored, and change nothing; ends with 3 if something is damaged
    #[command(after_long_help = "Example:\n  outhaul queue verify --data ./outhaul-data")]
    Verify(DataArgs),
    /// Move damaged stretches to DIR/quarantine, so that the rest goes on without them; nothing is deleted
    #[command(after_long_help = "Example:\n  outhaul queue repair --data ./outhaul-data")]
    Repair(DataArgs),
    /// Write waiting events to standard output, one JSON object a line, in the order of their admission
    #[command(
        after_long_help = "An event that waits for several targets is written once. `outhaul pipe` reads what is \
        written.\n\nExample:\n  outhaul queue export --data ./outhaul-data --target billing > waiting.ndjson"
    )]
    Export {
        #[command(flatten)]
        place: Place,
    },
}

/// Take over what waits in the queue directory of another product
///
/// Order and ids are kept. What was taken is remembered, so that it can be done again: after a crash, or when more came.
/// The source is only read; what cannot be decoded in it is named, and left. The events are delivered when `run` or
/// `pipe` is started with a target of that name.
#[derive(Parser)]
#[command(after_long_help = format!(
    "Examples:
  outhaul import rustfs /var/lib/rustfs/events/rustfs-webhook-primary --data ./outhaul-data --target billing
  outhaul import minio /var/lib/minio/queue/minio-webhook-1 --data ./outhaul-data --target billing

{AT_REST} So should the source be: end the product, or its target, first.

{EXIT_CODES}"
))]
pub(crate) struct ImportArgs {
    /// Whose directory it is
    #[arg(value_name = "PRODUCT")]
    pub(crate) product: ImportProduct,
    /// The queue directory of one target there
    #[arg(value_name = "DIR")]
    pub(crate) source: PathBuf,
    /// The data directory; it is made if there is none
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The target whose queue gets the events
    #[arg(long, value_name = "NAME")]
    pub(crate) target: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportProduct {
    /// A directory `rustfs-<type>-<id>`
    Rustfs,
    /// A directory `minio-<type>-<id>`
    Minio,
}

/// A data directory, and how the answer is written.
#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// The data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A data directory, and the part of it that is meant.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Only the entries of this target [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct Filter {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The spelling of values.
mod values {
    use super::{Durability, Engine};

    pub(super) fn engine(text: &str) -> Result<Engine, String> {
        let found = Engine::ALL.into_iter().find(|engine| engine.as_str() == text);
        let known = Engine::ALL.map(Engine::as_str).join(", ");
        found.ok_or_else(|| format!("there is no such engine; write one of {known}"))
    }

    pub(super) fn durability(text: &str) -> Result<Durability, String> {
        match (text, text.strip_prefix("interval:")) {
            ("synced", _) => Ok(Durability::Synced),
            ("buffered", _) => Ok(Durability::Buffered),
            (_, Some(interval)) => outhaul::target::duration(interval)
                .map(Durability::Interval)
                .map_err(|why| format!("{interval:?} in it is wrong: {why}")),
            _ => Err("write synced, buffered, or interval: and a duration, such as interval:50ms".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn engines_and_durability_are_spelled_one_way() {
        assert_eq!(values::engine("journal"), Ok(Engine::Journal));
        assert!(values::engine("Journal").unwrap_err().contains("journal, "));
        assert_eq!(values::durability("synced"), Ok(Durability::Synced));
        assert_eq!(values::durability("buffered"), Ok(Durability::Buffered));
        let interval = Durability::Interval(Duration::from_millis(50));
        assert_eq!(values::durability("interval:50ms"), Ok(interval));
        for (wrong, told) in [
            ("interval", "such as interval:50ms"),
            ("interval:", "is wrong"),
            ("interval:0s", "above zero"),
            ("interval:5", "ms, s, m, h or d"),
            ("none", "synced, buffered"),
        ] {
            assert!(values::durability(wrong).unwrap_err().contains(told), "{wrong}");
        }
    }

    #[test]
    fn the_shards_are_counted_from_one() {
        assert_eq!("16".parse(), Ok(ShardCount(NonZeroU64::new(16).unwrap())));
        for wrong in ["0", "257", "-1", "many", ""] {
            assert!(wrong.parse::<ShardCount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_help_names_every_option_of_a_target_with_its_default() {
        for key in outhaul::target::OPTION_KEYS {
            let named = [' ', '\n'].iter().any(|before| OPTIONS.contains(&format!("{before}{key}=")));
            assert!(named, "{key}");
        }
        let docs = include_str!("../../../docs/tools.md");
        assert!(docs.contains("## Options of a target"));
        for key in outhaul::target::OPTION_KEYS {
            assert!(docs.contains(&format!("`outhaul.{key}`")), "{key}");
        }
    }

    /// Checks a verb and those below it.
    fn check_defaults(command: &clap::Command, path: &str) {
        for arg in
            command.get_arguments().filter(|arg| arg.get_action().takes_values() && !arg.is_required_set())
        {
            let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
            let told = help.contains("[default: ") || !arg.get_default_values().is_empty();
            assert!(told || arg.is_positional(), "{path}: {} has no default in its help", arg.get_id());
            assert!(!help.is_empty(), "{path}: {} has no help", arg.get_id());
        }
        for verb in command.get_subcommands() {
            check_defaults(verb, &format!("{path} {}", verb.get_name()));
        }
    }

    #[test]
    fn the_help_of_every_verb_tells_the_defaults() {
        check_defaults(&Args::command(), "outhaul");
    }
}
