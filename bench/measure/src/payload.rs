/// An event of `bytes` bytes that looks like an object store's and compresses about as well.
pub fn json(bytes: usize, seed: u64) -> Vec<u8> {
    let mut text = format!(
        "{{\"event\":\"s3:ObjectCreated:Put\",\"key\":\"bucket/objects/{seed:016x}\",\"region\":\"us-east-1\",\
         \"time\":\"2026-01-01T00:00:00.000Z\",\"principal\":\"minio\",\"pad\":\""
    );
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while text.len() + 2 < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push(char::from(b'a' + (state % 16) as u8));
    }
    text.truncate(bytes.saturating_sub(2));
    text.push_str("\"}");
    text.into_bytes()
}
