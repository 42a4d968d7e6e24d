//! Which shard a pid belongs to.

use std::num::NonZeroU64;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The shard of a pid: FNV-1a-64 of its bytes, modulo the shard count in `u64`.
///
/// It is the same on every machine and in every release, so what it decides may be stored.
///
/// | pid | FNV-1a-64 | of 7 shards |
/// |---|---|---|
/// | `a` | `af63dc4c8601ec8c` | 5 |
/// | `foobar` | `85944171f73967e8` | 6 |
/// | `order-1001` | `2e681292c686c08c` | 0 |
///
/// ```
/// # use std::num::NonZeroU64;
/// let seven = NonZeroU64::new(7).unwrap();
/// assert_eq!(outhaul_writer::shard_of("a", seven), 5);
/// assert_eq!(outhaul_writer::shard_of("foobar", seven), 6);
/// assert_eq!(outhaul_writer::shard_of("order-1001", seven), 0);
/// ```
#[must_use]
pub fn shard_of(pid: &str, shards: NonZeroU64) -> u64 {
    fnv1a64(pid.as_bytes()) % shards
}

/// FNV-1a with 64 bits (offset `cbf29ce484222325`, prime `100000001b3`).
pub(crate) fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_is_fnv1a64_modulo_the_shards() {
        let seven = NonZeroU64::new(7).unwrap();
        for (pid, hash, shard) in [
            ("a", 0xaf63_dc4c_8601_ec8c, 5),
            ("foobar", 0x8594_4171_f739_67e8, 6),
            ("order-1001", 0x2e68_1292_c686_c08c, 0),
        ] {
            assert_eq!(fnv1a64(pid.as_bytes()), hash, "{pid}");
            assert_eq!(shard_of(pid, seven), shard, "{pid}");
            assert_eq!(shard_of(pid, NonZeroU64::MIN), 0, "{pid}");
        }
    }
}
