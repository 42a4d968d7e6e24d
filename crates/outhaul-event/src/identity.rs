//! The names of an event ([`DedupId`]), of a queue ([`TargetName`]) and of an entry in it ([`Uid`]).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// FNV-1a with 64 bits: the hash that routing, indexes and directory names use. Not for secrets.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The identity that Outhaul gives to an event: 36 ASCII characters, a lower-case UUID with hyphens.
///
/// An id minted by Outhaul (UUID v7) is its own; any other pair of `source` and `id` becomes a UUID v8 made of the
/// first 16 bytes of SHA-256 over `source` NUL `id`, so that equal ids of two sources stay two, and a producer
/// that sends an event again is recognised by the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupId(Uuid);

impl DedupId {
    /// Derives the identity of a producer's event.
    ///
    /// ```
    /// # use outhaul_event::DedupId;
    /// let id = DedupId::derive("/shop", "1");
    /// assert_eq!(id.to_string(), "65638845-d47d-8559-80f0-f7a140c6e0b0");
    /// ```
    pub fn derive(source: &str, id: &str) -> Self {
        let digest = Sha256::new().chain_update(source).chain_update([0]).chain_update(id).finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// A new id, greater than every one minted before by this process.
    pub fn mint() -> Self {
        Self(Uuid::now_v7())
    }

    /// The 16 bytes of the UUID.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// The id with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for DedupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for DedupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DedupId({self})")
    }
}

impl FromStr for DedupId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

impl serde::Serialize for DedupId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name of a target, and of the queue that belongs to it: `[a-z0-9][a-z0-9._-]{0,63}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetName(Arc<str>);

/// A name that no target can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no target name: 1 to 64 characters of a-z, 0-9, `.`, `_` and `-` are allowed, and the first is a \
     letter or digit"
)]
pub struct InvalidTargetName(pub String);

impl TargetName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, InvalidTargetName> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = name.as_bytes();
        let valid = matches!(bytes.first(), Some(&first) if plain(first))
            && bytes.len() <= 64
            && bytes.iter().all(|&b| plain(b) || b"._-".contains(&b));
        if valid { Ok(Self(name.into())) } else { Err(InvalidTargetName(name.chars().take(80).collect())) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for TargetName {
    type Err = InvalidTargetName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl serde::Serialize for TargetName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Names one entry: the queue it waits in and its sequence there. New at every admission and requeue, never reused.
/// Written `billing:42`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid {
    /// The queue.
    pub queue: TargetName,
    /// The sequence, from 1, growing in the order of admission.
    pub sequence: u64,
}

/// A text that names no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no entry's uid: it is a target name, a colon and a number, such as billing:42")]
pub struct InvalidUid(pub String);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.queue, self.sequence)
    }
}

impl FromStr for Uid {
    type Err = InvalidUid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidUid(text.chars().take(100).collect());
        let (queue, sequence) = text.rsplit_once(':').ok_or_else(invalid)?;
        let queue = TargetName::new(queue).map_err(|_| invalid())?;
        let sequence = sequence.parse().ok().filter(|&s| s > 0).ok_or_else(invalid)?;
        Ok(Self { queue, sequence })
    }
}

impl serde::Serialize for Uid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_of_two_sources_are_two() {
        assert_ne!(DedupId::derive("/a", "1"), DedupId::derive("/b", "1"));
        // The NUL keeps the boundary: no two pairs share their concatenation.
        assert_ne!(DedupId::derive("/a", "b1"), DedupId::derive("/ab", "1"));
        assert_eq!(DedupId::derive("/a", "1").to_string().len(), 36);
    }

    #[test]
    fn a_derived_id_is_a_version_8_uuid_and_a_minted_one_version_7() {
        assert_eq!(DedupId::derive("/a", "1").0.get_version_num(), 8);
        assert_eq!(DedupId::mint().0.get_version_num(), 7);
        assert!(DedupId::mint() < DedupId::mint());
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "0", "billing", "a.b_c-d", &"x".repeat(64)] {
            assert!(TargetName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "_", "A", "a b", "a/b", "é", &"x".repeat(65)] {
            assert!(TargetName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_uid_is_read_back() {
        let uid: Uid = "a.b-c:42".parse().unwrap();
        assert_eq!((uid.queue.as_str(), uid.sequence), ("a.b-c", 42));
        assert_eq!(uid.to_string(), "a.b-c:42");
        for bad in ["", "a", "a:", "a:0", ":1", "a:-1", "a:1x", "A:1"] {
            assert!(bad.parse::<Uid>().is_err(), "{bad}");
        }
    }
}
