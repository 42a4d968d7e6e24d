//! Names: of a target's directory, of an entry's file, and the ids that files are named by. Text in, text out.
//!
//! A file is `[<count>_]<name>.event[.snappy]`. The names that are minted here are UUIDs of version 7 whose first 60
//! free bits are the entry's sequence and whose last 32 bits are a checksum of the rest: so a file of ours tells its
//! sequence, and a file of another product is not taken for one.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use outhaul_event::{TargetName, fnv1a64};
use uuid::Uuid;

/// The suffix of a compressed entry.
pub(crate) const COMPRESSED: &str = ".snappy";
/// The suffix of a file that is not finished.
pub(crate) const UNFINISHED: &str = ".tmp";
/// What notifications are called; audit records are `.audit`.
pub(crate) const EVENT: &str = ".event";

/// A name that would lead out of its directory, or cannot be one file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no file's name")]
pub struct InvalidName(pub String);

/// Passes the name of a file in a directory; refuses what leads elsewhere.
pub fn file_name(name: &str) -> Result<&str, InvalidName> {
    let elsewhere = name.is_empty()
        || name == "."
        || name == ".."
        || name.len() > 255
        || name.bytes().any(|byte| matches!(byte, b'/' | b'\\' | 0));
    if elsewhere { Err(InvalidName(name.chars().take(80).collect())) } else { Ok(name) }
}

/// An id as RustFS makes it safe for a path: what is not `[A-Za-z0-9._-]` becomes `_`, and a hash keeps two ids
/// that become the same apart.
///
/// ```
/// use outhaul_store::spool::safe_id;
///
/// assert_eq!(safe_id("billing"), "billing");
/// assert_eq!(safe_id("tenant:1"), "tenant_1-c33e3928e42ef8f4");
/// ```
pub fn safe_id(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let mut safe: String = id.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    if id.is_empty() {
        safe = format!("_{:016x}", fnv1a64(id.as_bytes()));
    } else if safe != id {
        hashed(&mut safe, id);
    }
    safe
}

fn hashed(safe: &mut String, id: &str) {
    // Writing to a string cannot fail.
    write!(safe, "-{:016x}", fnv1a64(id.as_bytes())).unwrap_or_default();
}

/// The directory of a target: `outhaul-` and its name. The prefix keeps device names of Windows away. A dot at the end,
/// which Windows drops, becomes `_` and the hash; a second `-` keeps that apart from every name.
pub(crate) fn directory(target: &TargetName) -> String {
    let name = target.as_str();
    let Some(rest) = name.strip_suffix('.') else { return format!("outhaul-{name}") };
    let mut safe = format!("outhaul--{rest}_");
    hashed(&mut safe, name);
    safe
}

/// The target that a directory belongs to by its name: one of ours, or one that RustFS calls `rustfs-<type>-<id>`.
pub(crate) fn target_of(directory: &str) -> Option<TargetName> {
    const TYPES: [&str; 9] =
        ["amqp", "webhook", "kafka", "mqtt", "mysql", "nats", "postgres", "pulsar", "redis"];
    if let Some(name) = directory.strip_prefix("outhaul-") {
        // One with a hash tells its name in the file beside it.
        return TargetName::new(name).ok();
    }
    let (kind, id) = directory.strip_prefix("rustfs-")?.split_once('-')?;
    TargetName::new(id).ok().filter(|_| TYPES.contains(&kind))
}

/// The parts of an entry's file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryName<'a> {
    /// How many items are in it.
    pub count: u64,
    /// What stands behind the count: `_`, or `:` in older ones. None without a count.
    pub separator: Option<char>,
    /// The name proper.
    pub name: &'a str,
    /// From the last dot on; empty without one.
    pub extension: &'a str,
    /// Whether the file is compressed.
    pub compressed: bool,
}

impl<'a> EntryName<'a> {
    /// Takes a file's name apart. Every text has parts.
    pub fn parse(file: &'a str) -> Self {
        let (rest, compressed) = match file.strip_suffix(COMPRESSED) {
            Some(rest) => (rest, true),
            None => (file, false),
        };
        let (mut count, mut separator, mut rest) = (1, None, rest);
        if let Some(at) = rest.find(['_', ':'])
            && let Some(number) = rest[..at].parse::<u64>().ok().filter(|&number| number > 1)
        {
            (count, separator) = (number, rest[at..].chars().next());
            rest = &rest[at + 1..];
        }
        let (name, extension) = rest.split_at(rest.rfind('.').unwrap_or(rest.len()));
        Self { count, separator, name, extension, compressed }
    }
}

impl std::fmt::Display for EntryName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(separator) = self.separator {
            write!(f, "{}{separator}", self.count)?;
        }
        let suffix = if self.compressed { COMPRESSED } else { "" };
        write!(f, "{}{}{suffix}", self.name, self.extension)
    }
}

/// A UUID as it is written in a name, or None: lower case with hyphens.
pub(crate) fn uuid(name: &str) -> Option<[u8; 16]> {
    let id = Uuid::try_parse(name).ok().filter(|_| name.len() == 36)?;
    (id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == name).then(|| id.into_bytes())
}

pub(crate) fn uuid_text(id: [u8; 16]) -> String {
    Uuid::from_bytes(id).as_hyphenated().to_string()
}

/// The greatest sequence that a name can carry: 48 bits of milliseconds and 12 below them.
pub(crate) const SEQUENCE_MAX: u64 = (1 << 60) - 1;

/// The sequence at which an id stands among those minted here: its first 60 free bits.
pub(crate) fn prefix(id: [u8; 16]) -> u64 {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&id[..6]);
    let millis = u64::from_be_bytes(millis) << 12;
    // An id of another version lies before or behind all that have the same milliseconds.
    match id[6] >> 4 {
        7 => millis | u64::from(id[6] & 0x0f) << 8 | u64::from(id[7]),
        0..7 => millis.saturating_sub(1),
        _ => millis | 0xfff,
    }
}

/// The sequence of an id that was minted here.
pub(crate) fn minted(id: [u8; 16]) -> Option<u64> {
    let sum = crc32c::crc32c(&id[..12]).to_be_bytes();
    (id[6] >> 4 == 7 && id[8] >> 6 == 0b10 && id[12..] == sum).then(|| prefix(id))
}

/// Whether a file has a name that was minted here.
pub(crate) fn is_minted(file: &str) -> bool {
    uuid(EntryName::parse(file).name).and_then(minted).is_some()
}

/// Mints ids that grow, whatever the clock does.
#[derive(Debug)]
pub(crate) struct Minter {
    last: u64,
}

impl Minter {
    /// Mints above a sequence.
    pub(crate) fn above(last: u64) -> Self {
        Self { last }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The next sequence and its id; None when a name that is held leaves none above it.
    pub(crate) fn mint(&mut self, now: SystemTime) -> Option<(u64, [u8; 16])> {
        let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = u64::try_from(millis).unwrap_or(0).min(SEQUENCE_MAX >> 12) << 12;
        let sequence = now.max(self.last.saturating_add(1)).max(1);
        if sequence > SEQUENCE_MAX {
            return None;
        }
        self.last = sequence;
        Some((sequence, id(sequence)))
    }
}

/// A new id for a sequence of at most 60 bits.
pub(crate) fn id(sequence: u64) -> [u8; 16] {
    let mut id = Uuid::new_v4().into_bytes();
    let (millis, low) = ((sequence >> 12).to_be_bytes(), (sequence & 0xfff) as u16);
    id[..6].copy_from_slice(&millis[2..]);
    id[6..8].copy_from_slice(&(0x7000 | low).to_be_bytes());
    // The variant of version 4 is that of version 7.
    let sum = crc32c::crc32c(&id[..12]).to_be_bytes();
    id[12..].copy_from_slice(&sum);
    id
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_made_safe_as_rustfs_does() {
        assert_eq!(safe_id("a/b"), "a_b-e620c3190468cf61");
        assert_eq!(safe_id("tenant:1"), "tenant_1-c33e3928e42ef8f4");
        assert_eq!(safe_id("é"), "_-0ac21707b7181e01");
        assert_eq!(safe_id(""), "_cbf29ce484222325");
        assert_eq!(safe_id("A.b_c-9"), "A.b_c-9");
        assert_ne!(safe_id("a/b"), safe_id("a:b"));
    }

    #[test]
    fn directories_are_named_so_that_every_system_takes_them() {
        let name = |text| TargetName::new(text).unwrap();
        for target in ["a", "con", "nul.x", "rustfs-webhook-a", "outhaul-a"] {
            assert_eq!(target_of(&directory(&name(target))), Some(name(target)));
        }
        assert!(directory(&name("a.")).starts_with("outhaul--a_-"));
        assert_eq!(target_of(&directory(&name("a."))), None);
        assert_ne!(directory(&name("a.")), directory(&name("a_")));
        assert_eq!(target_of("rustfs-webhook-a"), Some(name("a")));
        for other in ["a", "rustfs-a", "rustfs-ftp-a", "rustfs-webhook-A", "minio-webhook-a", "outhaul-"] {
            assert_eq!(target_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_name_has_the_parts_that_rustfs_sees() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let parts = |file: &'static str| {
            let EntryName { count, name, extension, compressed, .. } = EntryName::parse(file);
            (count, name, extension, compressed)
        };
        assert_eq!(parts("01890a5d-ac96-774b-bcce-b302099a8057.event"), (1, id, ".event", false));
        assert_eq!(parts("01890a5d-ac96-774b-bcce-b302099a8057.event.snappy"), (1, id, ".event", true));
        assert_eq!(parts("3_01890a5d-ac96-774b-bcce-b302099a8057.audit"), (3, id, ".audit", false));
        assert_eq!(parts("3:01890a5d-ac96-774b-bcce-b302099a8057.event.snappy"), (3, id, ".event", true));
        assert_eq!(parts("1_x"), (1, "1_x", "", false));
        assert_eq!(parts("0_x"), (1, "0_x", "", false));
        assert_eq!(parts("1:x.event"), (1, "1:x", ".event", false));
        assert_eq!(parts("-2_x.y.event"), (1, "-2_x.y", ".event", false));
        assert_eq!(parts("2_3_x.event"), (2, "3_x", ".event", false));
        assert_eq!(parts("99999999999999999999_x.event"), (1, "99999999999999999999_x", ".event", false));
        assert_eq!(parts(".snappy"), (1, "", "", true));
        assert_eq!(parts(""), (1, "", "", false));
    }

    #[test]
    fn names_that_lead_out_of_the_directory_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", "a\\b", "/etc/passwd", "a\0b", &"x".repeat(256)] {
            assert!(file_name(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "..a", "3:x.event", "a b"] {
            assert!(file_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn minted_ids_grow_and_tell_their_sequence_when_the_clock_goes_back() {
        let held = uuid("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        let mut minter = Minter::above(prefix(held));
        let mut last = uuid_text(held);
        for _ in 0..10_000 {
            let (sequence, id) = minter.mint(UNIX_EPOCH).unwrap();
            let text = uuid_text(id);
            assert!(text > last, "{text} is above {last}");
            assert_eq!(minted(id), Some(sequence));
            assert_eq!(Uuid::from_bytes(id).get_version_num(), 7);
            assert_eq!(Uuid::from_bytes(id).get_variant(), uuid::Variant::RFC4122);
            last = text;
        }
        assert_eq!(minted(held), None, "another product's id is not taken for one of ours");
        let top = uuid("ffffffff-ffff-7fff-bfff-ffffffffffff").unwrap();
        assert_eq!(Minter::above(prefix(top)).mint(UNIX_EPOCH), None);
    }

    #[test]
    fn ids_of_other_versions_are_ordered_among_ours() {
        for (other, low, high) in [
            ("01890a5d-ac96-474b-bcce-b302099a8057", 0x018_90a5_dac9_5fff, 0x018_90a5_dac9_6000),
            ("01890a5d-ac96-874b-bcce-b302099a8057", 0x018_90a5_dac9_6fff, 0x018_90a5_dac9_7000),
        ] {
            assert_eq!(prefix(uuid(other).unwrap()), low);
            assert!(uuid_text(id(low)).as_str() < other || low & 0xfff == 0xfff);
            assert!(uuid_text(id(high)).as_str() > other);
        }
    }

    proptest! {
        #[test]
        fn any_text_has_parts_that_make_it_again(text in "\\PC{0,40}|[0-9]{0,3}[_:][a-f0-9.-]{0,40}(.event)?(.snappy)?") {
            let parts = EntryName::parse(&text);
            // A count may be spelt with a sign or zeros in front.
            let canonical = parts.separator.is_none() || text.starts_with(&parts.count.to_string());
            if canonical {
                prop_assert_eq!(parts.to_string(), text);
            }
        }

        #[test]
        fn any_id_is_safe(id in "\\PC{0,40}") {
            prop_assert!(file_name(&safe_id(&id)).is_ok() || id == "." || id == "..");
        }
    }
}
