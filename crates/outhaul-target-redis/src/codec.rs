//! Events to commands, and replies to what became of them. No I/O.

use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, encode};
use redis::{Arg, Cmd, ServerError, Value};

use crate::config::{Kind, NoReceivers, RedisOptions};

/// Puts an event into its key unless its id is known, and makes the id the newest of those that are remembered.
///
/// KEYS: where it goes, the ids. ARGV: the id, how many are remembered, the command, what follows its key. An id counts
/// as known only once its event is there, so that a failure in between leads to a repeat and never to a loss. A repeat
/// writes as well, which `WAIT` needs to have something to wait for.
pub(crate) const SCRIPT: &str = r"
local known = redis.pcall('ZSCORE', KEYS[2], ARGV[1])
if type(known) == 'table' then return known end
if not known then
  local put = redis.pcall(ARGV[3], KEYS[1], unpack(ARGV, 4))
  if type(put) == 'table' and put.err then return put end
end
local newest = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[2], tonumber(newest[2] or 0) + 1, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[2]) - 1)
return known and 0 or 1
";

/// What a connection has found out, and a command is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// The longest argument that it takes, in bytes.
    pub(crate) bulk_max: u64,
    /// By what it knows the script, where that is used.
    pub(crate) script: Option<String>,
}

/// A command that puts one event somewhere.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) key: String,
    pub(crate) cmd: Cmd,
}

/// What would change the parts of a key, or its hash tag.
fn is_unsafe(c: char) -> bool {
    c.is_whitespace() || ":{}".contains(c)
}

pub(crate) fn command(
    attempt: &Attempt,
    options: &RedisOptions,
    server: &Server,
) -> Result<Command, DeliveryError> {
    let key = options.key.render(&attempt.event, is_unsafe)?;
    let name = match options.kind {
        Kind::Stream => "XADD",
        Kind::List => "RPUSH",
        Kind::Channel => "PUBLISH",
    };
    let mut cmd = match (options.dedup, &server.script) {
        (Some(size), Some(script)) => {
            let ids = ids_key(&key).ok_or_else(|| DeliveryError::new(ErrorKind::Configuration))?;
            let mut cmd = redis::cmd("EVALSHA");
            cmd.arg(script).arg(2).arg(&key).arg(ids);
            cmd.arg(attempt.dedup_id.to_string()).arg(size.get()).arg(name);
            cmd
        }
        _ => {
            let mut cmd = redis::cmd(name);
            cmd.arg(&key);
            cmd
        }
    };
    if options.kind == Kind::Stream {
        entry(attempt, options, &mut cmd)?;
    } else {
        cmd.arg(&encode::message(&attempt.event, options.format)?.body[..]);
    }
    let longest = cmd.args_iter().map(|arg| if let Arg::Simple(bytes) = arg { bytes.len() } else { 0 }).max();
    if longest.unwrap_or_default() as u64 > server.bulk_max {
        let detail = format!("the server takes values of at most {} bytes", server.bulk_max);
        return Err(DeliveryError::new(ErrorKind::TooLarge).with_detail(detail));
    }
    Ok(Command { key, cmd })
}

/// What follows the key of a stream: a field for each attribute. No attribute can be called like one of the last three.
fn entry(attempt: &Attempt, options: &RedisOptions, cmd: &mut Cmd) -> Result<(), DeliveryError> {
    let event = &attempt.event;
    if let Some(maxlen) = options.maxlen {
        cmd.arg("MAXLEN").arg("~").arg(maxlen.get());
    }
    cmd.arg("*");
    let message = match options.format {
        Format::CloudEvents => {
            for (name, value) in event.attributes() {
                cmd.arg(name).arg(&*value);
            }
            encode::data(event)
        }
        format => encode::message(event, format)?,
    };
    if let Some(content_type) = &message.content_type {
        cmd.arg("content-type").arg(&**content_type);
    }
    cmd.arg("dedup_id").arg(attempt.dedup_id.to_string());
    cmd.arg("data").arg(&message.body[..]);
    Ok(())
}

/// Where the ids of a key are remembered: in the same hash slot, so that one script may have both in a cluster. None: a
/// brace in the key keeps its tag from being written.
pub(crate) fn ids_key(key: &str) -> Option<String> {
    let tag = key.split_once('{').and_then(|(_, after)| after.split_once('}'));
    if tag.is_some_and(|(tag, _)| !tag.is_empty()) {
        return Some(format!("{key}:outhaul:ids"));
    }
    (!key.contains('}')).then(|| format!("{{{key}}}:outhaul:ids"))
}

/// What became of one command of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// It ran, with this reply.
    Done(Value),
    /// It was refused.
    Failed(ServerError),
    /// The transaction was given up because of another one.
    NotRun,
    /// The reply is not one of a transaction.
    Nonsense,
}

/// The commands' answers out of the replies to `MULTI`, to each command, and to `EXEC`.
pub(crate) fn answers(mut replies: Vec<Value>) -> Vec<Answer> {
    let executed = replies.pop().unwrap_or(Value::Nil);
    let mut replies = replies.into_iter();
    let multi = replies.next().unwrap_or(Value::Nil);
    let one = |reply| match reply {
        Value::ServerError(error) => Answer::Failed(error),
        reply => Answer::Done(reply),
    };
    if matches!(multi, Value::ServerError(_)) {
        // There was no transaction: each one ran, or not, for itself.
        return replies.map(one).collect();
    }
    let count = replies.len();
    match executed {
        Value::Array(results) if results.len() == count => results.into_iter().map(one).collect(),
        executed => {
            let queued: Vec<Answer> = replies.map(one).collect();
            let is_failed = |answer: &Answer| matches!(answer, Answer::Failed(_));
            let others = match executed {
                _ if queued.iter().any(is_failed) => Answer::NotRun,
                Value::ServerError(error) => Answer::Failed(error),
                _ => Answer::Nonsense,
            };
            let judge = |answer| if is_failed(&answer) { answer } else { others.clone() };
            queued.into_iter().map(judge).collect()
        }
    }
}

/// What the reply to a command means.
pub(crate) fn judge(reply: &Value, options: &RedisOptions) -> Result<(), DeliveryError> {
    if options.kind == Kind::Channel && options.no_receivers == NoReceivers::Retry && *reply == Value::Int(0)
    {
        return Err(
            DeliveryError::new(ErrorKind::Conflict).with_detail("nobody is subscribed to the channel")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outhaul_target::TargetUri;
    use outhaul_target::outhaul_event::Event;
    use outhaul_target::testkit::attempt;

    use super::*;

    fn of(event: Event, rest: &str, script: bool) -> Result<Vec<String>, DeliveryError> {
        let uri = TargetUri::parse(&format!("redis://h/0?{rest}")).unwrap();
        let options = RedisOptions::from_uri(uri).unwrap();
        let server = Server { bulk_max: 200, script: script.then(|| "5ha".to_owned()) };
        let command = command(&attempt(event), &options, &server)?;
        let text = |arg| match arg {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => panic!("a plain argument"),
        };
        Ok(command.cmd.args_iter().map(text).collect())
    }

    fn event() -> Event {
        let event = Event::builder("paid", "/shop").id("1").pid("a:{b} c").header("tenant", "x");
        event.body("text/plain", "hello").build().unwrap()
    }

    #[test]
    fn a_stream_has_a_field_for_each_attribute() {
        let dedup_id = event().dedup_id().to_string();
        let expected = [
            ["XADD", "o:paid:a%3A%7Bb%7D%20c"].as_slice(),
            &["MAXLEN", "~", "7", "*", "specversion", "1.0", "id", "1", "source", "/shop", "type", "paid"],
            &["partitionkey", "a:{b} c", "tenant", "x", "content-type", "text/plain", "dedup_id", &dedup_id],
            &["data", "hello"],
        ];
        let words = of(event(), "outhaul.stream=o:{type}:{pid}&outhaul.maxlen=7", false).unwrap();
        assert_eq!(words, expected.concat());
        let words = of(event(), "outhaul.stream=o&outhaul.format=body", false).unwrap();
        let expected =
            ["XADD", "o", "*", "content-type", "text/plain", "dedup_id", &dedup_id, "data", "hello"];
        assert_eq!(words, expected);
    }

    #[test]
    fn lists_and_channels_have_one_value() {
        let words = of(event(), "outhaul.list=l&outhaul.format=body", false).unwrap();
        assert_eq!(words, ["RPUSH", "l", "hello"]);
        let words = of(event(), "outhaul.channel=c", false).unwrap();
        assert_eq!(words[..2], ["PUBLISH", "c"]);
        assert!(words[2].starts_with("{\"specversion\""), "{words:?}");
    }

    #[test]
    fn the_script_gets_what_the_command_would() {
        let words = of(event(), "outhaul.list=l&outhaul.format=body&outhaul.dedup=9", true).unwrap();
        let id = event().dedup_id().to_string();
        assert_eq!(words, ["EVALSHA", "5ha", "2", "l", "{l}:outhaul:ids", &id, "9", "RPUSH", "hello"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let without = Event::builder("t", "/s").build().unwrap();
        assert_eq!(of(without, "outhaul.stream={pid}", false).unwrap_err().kind(), ErrorKind::Malformed);
        let large = Event::builder("t", "/s").body("text/plain", "x".repeat(201)).build().unwrap();
        assert_eq!(of(large, "outhaul.stream=a", false).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(
            of(event(), "outhaul.list=a&outhaul.format=s3", false).unwrap_err().kind(),
            ErrorKind::Malformed
        );
    }

    #[test]
    fn the_ids_are_in_the_slot_of_their_key() {
        for (key, expected) in [
            ("a", Some("{a}:outhaul:ids")),
            ("{a}b", Some("{a}b:outhaul:ids")),
            ("b{a}", Some("b{a}:outhaul:ids")),
            ("{a", Some("{{a}:outhaul:ids")),
            ("a}", None),
            ("{}a", None),
        ] {
            assert_eq!(ids_key(key).as_deref(), expected, "{key}");
        }
    }

    fn replies(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|text| redis::parse_redis_value(text.as_bytes()).unwrap()).collect()
    }

    fn codes(texts: &[&str]) -> Vec<String> {
        let of = |answer| match answer {
            Answer::Done(_) => "done".to_owned(),
            Answer::Failed(error) => error.code().to_owned(),
            Answer::NotRun => "not run".to_owned(),
            Answer::Nonsense => "nonsense".to_owned(),
        };
        answers(replies(texts)).into_iter().map(of).collect()
    }

    #[test]
    fn each_command_of_a_transaction_has_its_answer() {
        let (ok, queued) = ("+OK\r\n", "+QUEUED\r\n");
        let refused = "-NOPERM no\r\n";
        let done = "*2\r\n:1\r\n-WRONGTYPE no\r\n";
        assert_eq!(codes(&[ok, queued, queued, done]), ["done", "WRONGTYPE"]);
        assert_eq!(codes(&[ok, queued, refused, "-EXECABORT no\r\n"]), ["not run", "NOPERM"]);
        assert_eq!(codes(&[ok, queued, queued, "-OOM no\r\n"]), ["OOM", "OOM"]);
        assert_eq!(codes(&[ok, queued, queued, "*-1\r\n"]), ["nonsense", "nonsense"]);
        assert_eq!(codes(&[ok, queued, queued, "*1\r\n:1\r\n"]), ["nonsense", "nonsense"]);
        assert_eq!(codes(&[refused, ":1\r\n", "-OOM no\r\n", "-ERR no\r\n"]), ["done", "OOM"]);
    }
}
