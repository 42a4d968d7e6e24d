//! The options that every target knows, and the spelling of their values.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use crate::config_error::ConfigError;
use crate::uri::TargetUri;

/// How the body that a receiver gets is made from an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `cloudevents`: binary mode where the protocol has headers, structured JSON elsewhere.
    #[default]
    CloudEvents,
    /// `body`: only the data.
    Body,
    /// `s3`: `{"EventName", "Key", "Records"}`, for consumers of object-store notifications.
    S3,
}

/// How a `CloudEvent` is put into a message of a protocol that has headers: the option `mode` of such targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// `binary`: attributes as headers, the data as the body.
    #[default]
    Binary,
    /// `structured`: one JSON object.
    Structured,
}

impl Mode {
    /// The words of the option.
    pub const WORDS: &[(&str, Self)] = &[("binary", Self::Binary), ("structured", Self::Structured)];

    /// Reads what was taken for the option `mode`; without it, binary.
    ///
    /// # Errors
    /// Another word, or a format that has no modes.
    pub fn read(taken: Option<&str>, uri: &TargetUri) -> Result<Self, ConfigError> {
        let Some(text) = taken else { return Ok(Self::default()) };
        if uri.options().format != Format::CloudEvents {
            let why = "only the format `cloudevents` has modes";
            return Err(uri.invalid("mode", why, "leave out `outhaul.mode` or `outhaul.format`"));
        }
        one_of(text, Self::WORDS).map_err(|why| uri.invalid("mode", why, "write one of them"))
    }
}

/// What happens to an entry that has used up [`TargetOptions::attempts_max`] or [`TargetOptions::age_max`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnExhausted {
    /// `keep`: one notice; the lane goes on at the longest backoff.
    #[default]
    Keep,
    /// `fail`: it goes to the failed store.
    Fail,
}

/// What happens to the later events of a pid when one of it was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnReject {
    /// `continue`: they are delivered.
    #[default]
    Continue,
    /// `stop_pid`: they wait until a person decides.
    StopPid,
}

/// What happens to an event that finds this target's queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WhenFull {
    /// `refuse`: the event is refused for all its targets, and the producer told which one is full. This couples
    /// targets on purpose.
    #[default]
    Refuse,
    /// `shed`: this target alone misses the event; it is counted and named in the receipt.
    Shed,
    /// `overflow`: the oldest entry that is not in flight makes room by going to the failed store.
    Overflow,
}

/// What happens when the target's part of the failed store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailedFull {
    /// `hold_target`: what fails stays in the queue, and the target is held until a person decides.
    HoldTarget,
    /// `discard_oldest`: what failed first is discarded, and counted.
    DiscardOldest,
}

/// Whose habits the target's part of the failed store has, where no other option says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailedCompat {
    /// `rustfs`: 10,000 entries, kept for 72 hours, the oldest discarded at the bound.
    Rustfs,
}

/// What can be set for a target of any kind: `outhaul.KEY=VALUE` in its URI.
///
/// Durations are a whole number and `ms`, `s`, `m`, `h` or `d`; sizes are bytes, or a whole number and `KiB`, `MiB`,
/// `GiB` or `TiB`. Zero is an error everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetOptions {
    /// `enabled`: `false` for a target that queues and sends nothing (true).
    pub enabled: bool,
    /// `format`: `cloudevents`, `body` or `s3`.
    pub format: Format,
    /// `timeout`: the deadline of one attempt, from connecting to the last byte (30 s).
    pub timeout: Duration,
    /// `connect_timeout`: the deadline of connecting alone, at most `timeout` (5 s).
    pub connect_timeout: Duration,
    /// `in_flight`: attempts that may run at the same time (16).
    pub in_flight: NonZeroUsize,
    /// `batch`: events handed over together at most (100, or less if the target takes less).
    pub batch: Option<NonZeroUsize>,
    /// `batch_bytes`: bytes handed over together at most (1 MiB, or less if the target takes less). One event that is
    /// larger is sent alone.
    pub batch_bytes: Option<NonZeroU64>,
    /// `linger`: how long a batch that is not full waits for more events (not at all).
    pub linger: Option<Duration>,
    /// `rate`: events per second at most (no limit).
    pub rate: Option<NonZeroU32>,
    /// `rate_bytes`: bytes of events per second at most (no limit).
    pub rate_bytes: Option<NonZeroU64>,
    /// `retry_after_max`: a receiver that asks to be left alone is left alone no longer than that (1 h).
    pub retry_after_max: Duration,
    /// `backoff`: the first wait after a `Retry`, doubled each time (1 s).
    pub backoff: Duration,
    /// `backoff_max`: the longest such wait (5 min).
    pub backoff_max: Duration,
    /// `trial_backoff`: the first wait of a target that is held (500 ms).
    pub trial_backoff: Duration,
    /// `trial_backoff_max`: the longest such wait (60 s).
    pub trial_backoff_max: Duration,
    /// `attempts_max`: how often an entry is tried (no limit).
    pub attempts_max: Option<NonZeroU32>,
    /// `age_max`: how long an entry is tried, counted from its admission (no limit).
    pub age_max: Option<Duration>,
    /// `on_exhausted`: `keep` or `fail`.
    pub on_exhausted: OnExhausted,
    /// `on_reject`: `continue` or `stop_pid`.
    pub on_reject: OnReject,
    /// `when_full`: `refuse`, `shed` or `overflow`.
    pub when_full: WhenFull,
    /// `queue_bytes`: what may wait, in bytes. None: the smaller of 10 GiB and a quarter of the file system.
    pub queue_bytes: Option<NonZeroU64>,
    /// `queue_entries`: how many entries may wait (10 million).
    pub queue_entries: NonZeroU64,
    /// `failed_entries`: entries of this target in the failed store (None: as the store is set, 100,000).
    pub failed_entries: Option<NonZeroU64>,
    /// `failed_bytes`: bytes of this target in the failed store (None: as the store is set, 1 GiB).
    pub failed_bytes: Option<NonZeroU64>,
    /// `failed_full`: `hold_target` or `discard_oldest` (None: as the store is set, `hold_target`).
    pub failed_full: Option<FailedFull>,
    /// `failed_expire_after`: how long entries are kept in the failed store (None: as the store is set, until a person
    /// decides).
    pub failed_expire_after: Option<Duration>,
    /// `failed_compat`: `rustfs`, other defaults for the four above (None: as the store is set).
    pub failed_compat: Option<FailedCompat>,
}

impl Default for TargetOptions {
    fn default() -> Self {
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not zero");
        const BATCH: NonZeroUsize = NonZeroUsize::new(100).expect("100 is not zero");
        const ENTRIES: NonZeroU64 = NonZeroU64::new(10_000_000).expect("10 million is not zero");
        Self {
            enabled: true,
            format: Format::CloudEvents,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            in_flight: IN_FLIGHT,
            batch: Some(BATCH),
            batch_bytes: None,
            linger: None,
            rate: None,
            rate_bytes: None,
            retry_after_max: Duration::from_secs(3600),
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            trial_backoff: Duration::from_millis(500),
            trial_backoff_max: Duration::from_secs(60),
            attempts_max: None,
            age_max: None,
            on_exhausted: OnExhausted::Keep,
            on_reject: OnReject::Continue,
            when_full: WhenFull::Refuse,
            queue_bytes: None,
            queue_entries: ENTRIES,
            failed_entries: None,
            failed_bytes: None,
            failed_full: None,
            failed_expire_after: None,
            failed_compat: None,
        }
    }
}

/// The keys of [`TargetOptions`], in the order of its fields.
pub const OPTION_KEYS: [&str; 27] = [
    "enabled",
    "format",
    "timeout",
    "connect_timeout",
    "in_flight",
    "batch",
    "batch_bytes",
    "linger",
    "rate",
    "rate_bytes",
    "retry_after_max",
    "backoff",
    "backoff_max",
    "trial_backoff",
    "trial_backoff_max",
    "attempts_max",
    "age_max",
    "on_exhausted",
    "on_reject",
    "when_full",
    "queue_bytes",
    "queue_entries",
    "failed_entries",
    "failed_bytes",
    "failed_full",
    "failed_expire_after",
    "failed_compat",
];

impl TargetOptions {
    /// Sets one option from its text. `Ok(false)`: there is no such key. The error says what is valid.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "enabled" => self.enabled = one_of(value, &[("true", true), ("false", false)])?,
            "format" => {
                let formats =
                    [("cloudevents", Format::CloudEvents), ("body", Format::Body), ("s3", Format::S3)];
                self.format = one_of(value, &formats)?;
            }
            "timeout" => self.timeout = duration(value)?,
            "connect_timeout" => self.connect_timeout = duration(value)?,
            "in_flight" => self.in_flight = number(value)?,
            "batch" => self.batch = Some(number(value)?),
            "batch_bytes" => self.batch_bytes = Some(size(value)?),
            "linger" => self.linger = Some(duration(value)?),
            "rate" => self.rate = Some(number(value)?),
            "rate_bytes" => self.rate_bytes = Some(size(value)?),
            "retry_after_max" => self.retry_after_max = duration(value)?,
            "backoff" => self.backoff = duration(value)?,
            "backoff_max" => self.backoff_max = duration(value)?,
            "trial_backoff" => self.trial_backoff = duration(value)?,
            "trial_backoff_max" => self.trial_backoff_max = duration(value)?,
            "attempts_max" => self.attempts_max = Some(number(value)?),
            "age_max" => self.age_max = Some(duration(value)?),
            "on_exhausted" => {
                self.on_exhausted =
                    one_of(value, &[("keep", OnExhausted::Keep), ("fail", OnExhausted::Fail)])?;
            }
            "on_reject" => {
                self.on_reject =
                    one_of(value, &[("continue", OnReject::Continue), ("stop_pid", OnReject::StopPid)])?;
            }
            "when_full" => {
                let choices = [
                    ("refuse", WhenFull::Refuse),
                    ("shed", WhenFull::Shed),
                    ("overflow", WhenFull::Overflow),
                ];
                self.when_full = one_of(value, &choices)?;
            }
            "queue_bytes" => self.queue_bytes = Some(size(value)?),
            "queue_entries" => self.queue_entries = number(value)?,
            "failed_entries" => self.failed_entries = Some(number(value)?),
            "failed_bytes" => self.failed_bytes = Some(size(value)?),
            "failed_full" => {
                let choices =
                    [("hold_target", FailedFull::HoldTarget), ("discard_oldest", FailedFull::DiscardOldest)];
                self.failed_full = Some(one_of(value, &choices)?);
            }
            "failed_expire_after" => self.failed_expire_after = Some(duration(value)?),
            "failed_compat" => self.failed_compat = Some(one_of(value, &[("rustfs", FailedCompat::Rustfs)])?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the options against each other. The error is the key that is wrong, and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let pairs = [
            ("connect_timeout", self.connect_timeout, "timeout", self.timeout),
            ("backoff", self.backoff, "backoff_max", self.backoff_max),
            ("trial_backoff", self.trial_backoff, "trial_backoff_max", self.trial_backoff_max),
        ];
        for (key, smaller, other, larger) in pairs {
            if smaller > larger {
                let why = format!("it is {smaller:?}, longer than `outhaul.{other}`, which is {larger:?}");
                return Err((key, why));
            }
        }
        if self.on_exhausted == OnExhausted::Fail && self.attempts_max.is_none() && self.age_max.is_none() {
            let why = "`fail` does nothing without `outhaul.attempts_max` or `outhaul.age_max`".to_owned();
            return Err(("on_exhausted", why));
        }
        Ok(())
    }
}

/// Reads a duration: a whole number above zero and `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
/// The text says what is valid.
///
/// ```
/// # use outhaul_target::duration;
/// assert_eq!(duration("5m").unwrap().as_secs(), 300);
/// assert!(duration("0s").is_err());
/// ```
pub fn duration(text: &str) -> Result<Duration, String> {
    let valid =
        || "it is no duration: write a whole number above zero and ms, s, m, h or d, such as 250ms or 5m";
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let millis = with_unit(text, &units).ok_or_else(valid)?;
    if millis > 86_400_000 * 36_500 {
        return Err("it is longer than 100 years".to_owned());
    }
    Ok(Duration::from_millis(millis))
}

/// Reads a size: bytes, or a whole number and `KiB`, `MiB`, `GiB` or `TiB`.
///
/// # Errors
/// The text says what is valid.
///
/// ```
/// # use outhaul_target::size;
/// assert_eq!(size("64KiB").unwrap().get(), 65_536);
/// ```
pub fn size(text: &str) -> Result<NonZeroU64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("", 1)];
    with_unit(text, &units).and_then(NonZeroU64::new).ok_or_else(|| {
        "it is no size: write a whole number of bytes above zero, or one with KiB, MiB, GiB or TiB, such as 64KiB"
            .to_owned()
    })
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor).filter(|&n| n > 0)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or_else(|| {
        "it is no number that is allowed here: write a whole number above zero, without a unit".to_owned()
    })
}

/// Picks one of the listed words.
///
/// # Errors
/// The text lists the valid words.
pub fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*choice);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    Err(format!("valid are {}", names.join(", ")))
}
