//! How lanes are found: their keys are hashes already, so mixing them with a secret is enough.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers that share a secret: who chooses pids cannot choose where in a table they are.
#[derive(Debug, Clone)]
pub(super) struct Hashed(u64);

impl Default for Hashed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for Hashed {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(self.0)
    }
}

pub(super) struct Mixed(u64);

impl Mixed {
    fn mix(&mut self, word: u64) {
        const ODD: u128 = 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(self.0 ^ word) * ODD;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::worker::lanes::LaneKey;

    #[test]
    fn keys_that_differ_little_are_spread() {
        let hashed = Hashed::default();
        let low = |key: LaneKey| hashed.hash_one(key) & 0xFFFF;
        let pids: HashSet<u64> = (0..1000).map(|n| low(LaneKey::Pid(n << 48))).collect();
        let alone: HashSet<u64> = (0..1000).map(|n| low(LaneKey::Alone(n))).collect();
        // By chance some eight of a thousand fall on another one.
        assert!(pids.len() > 900 && alone.len() > 900, "{} {}", pids.len(), alone.len());
        assert_ne!(hashed.hash_one(LaneKey::Pid(7)), hashed.hash_one(LaneKey::Alone(7)));
    }
}
