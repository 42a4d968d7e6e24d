//! What the fuzz targets call for the formats of queue directories: any bytes at all go into their readers. Nothing
//! may panic, loop for long, or allocate much more than it is given.

use bytes::Bytes;

use super::names::{self, EntryName};
use super::notification::Notification;
use super::{batch, mapping, rqp1};

const NAME: &str = "01890a5d-ac96-774b-bcce-b302099a8001";

/// An entry that is not compressed, and a batch of entries.
pub fn entry(bytes: &[u8]) {
    let own = Bytes::copy_from_slice(bytes);
    drop(rqp1::decode(&own));
    drop(mapping::decode(&own, NAME));
    drop(Notification::from_envelope(&own));
    for count in [0, 1, 3, u64::MAX] {
        drop(batch::split(bytes, count));
    }
}

/// An entry or batch that is compressed with Snappy or S2.
pub fn compressed(bytes: &[u8]) {
    for plain in [rqp1::decompress(bytes), rqp1::decompress_s2(bytes)].into_iter().flatten() {
        entry(&plain);
    }
}

/// The name of a file or directory.
pub fn name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    drop(names::file_name(&text));
    let parsed = EntryName::parse(&text);
    std::hint::black_box(names::uuid(parsed.name).and_then(names::minted));
    drop(names::target_of(&text));
    let safe = names::safe_id(&text);
    assert!(safe.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), "{safe}");
}
