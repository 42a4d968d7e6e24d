//! Events to requests: headers, bodies, signatures. No I/O.

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as BASE64};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use outhaul_target::{Attempt, DeliveryError, ErrorKind, Format, Mode, encode};
use sha2::{Digest, Sha256};

/// A request without its address and credentials.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Writes one event.
pub(crate) fn parts(
    attempt: &Attempt,
    format: Format,
    mode: Mode,
    timestamp: u64,
) -> Result<Parts, DeliveryError> {
    let event = &attempt.event;
    let mut headers = HeaderMap::new();
    let body = if format == Format::CloudEvents && mode == Mode::Binary {
        for (name, value) in event.to_headers() {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(unfit)?;
            headers.insert(name, HeaderValue::try_from(value).map_err(unfit)?);
        }
        event.body().clone()
    } else {
        let message = encode::message(event, format)?;
        if let Some(content_type) = message.content_type.as_deref() {
            headers.insert(CONTENT_TYPE, HeaderValue::try_from(content_type).map_err(unfit)?);
        }
        message.body
    };
    if body.is_empty() {
        // The client says nothing about a body that is none, and some receivers answer 411 then (RFC 9110, 8.6).
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let id = HeaderValue::try_from(attempt.dedup_id.to_string()).map_err(unfit)?;
    headers.insert(HeaderName::from_static("webhook-id"), id);
    headers.insert(HeaderName::from_static("webhook-timestamp"), timestamp.into());
    Ok(Parts { headers, body })
}

/// An attribute that is no header; events are checked when they are admitted, so this is rare.
fn unfit(error: impl Into<http::Error>) -> DeliveryError {
    let error: http::Error = error.into();
    DeliveryError::new(ErrorKind::Malformed)
        .with_detail("an attribute of the event cannot be a header")
        .with_source(error)
}

/// The key of a Standard Webhooks secret: base64, with or without `whsec_`. None if it is none.
pub(crate) fn key(secret: &str) -> Option<Vec<u8>> {
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = secret.strip_prefix("whsec_").unwrap_or(secret);
    GeneralPurpose::new(&ALPHABET, lenient).decode(text).ok().filter(|key| !key.is_empty())
}

/// `webhook-signature` of Standard Webhooks, scheme `v1`: HMAC-SHA256 over `id.timestamp.body`.
pub(crate) fn signature(key: &[u8], id: &str, timestamp: u64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp}.");
    format!("v1,{}", BASE64.encode(hmac_sha256(key, &[head.as_bytes(), body])))
}

/// HMAC (RFC 2104) with SHA-256.
fn hmac_sha256(key: &[u8], message: &[&[u8]]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    match key.len() {
        0..=BLOCK => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let inner = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x36));
    let inner = message.iter().fold(inner, |hash, part| hash.chain_update(part)).finalize();
    Sha256::new_with_prefix(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use outhaul_target::outhaul_event::{Event, Limits};

    use super::*;

    fn attempt() -> Attempt {
        let event = Event::builder("com.example.paid", "/shop")
            .id("ü 1")
            .pid("p\"1")
            .header("traceid", "00-ab")
            .body("text/plain", "hello")
            .build()
            .unwrap();
        Attempt {
            dedup_id: event.dedup_id(),
            event: event.into(),
            uid: "q:1".parse().unwrap(),
            version: 1,
            number: 1,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn binary_mode_can_be_read_back() {
        let attempt = attempt();
        let parts = parts(&attempt, Format::CloudEvents, Mode::Binary, 7).unwrap();
        let headers = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let back = Event::from_headers(headers, parts.body.clone(), &Limits::default()).unwrap();
        assert_eq!((back.id(), back.pid(), &back.body()[..]), ("ü 1", Some("p\"1"), &b"hello"[..]));
        assert_eq!(parts.headers["webhook-id"], attempt.dedup_id.to_string());
        assert_eq!(parts.headers["webhook-timestamp"], "7");
    }

    #[test]
    fn the_other_formats_have_their_content_type_and_no_attributes() {
        for (format, mode, content_type) in [
            (Format::CloudEvents, Mode::Structured, "application/cloudevents+json"),
            (Format::Body, Mode::Binary, "text/plain"),
        ] {
            let parts = parts(&attempt(), format, mode, 7).unwrap();
            assert_eq!(parts.headers[CONTENT_TYPE], content_type);
            assert!(parts.headers.keys().all(|name| !name.as_str().starts_with("ce-")));
            assert!(parts.headers.contains_key("webhook-id"));
        }
        let refused = parts(&attempt(), Format::S3, Mode::Binary, 7).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Malformed);
    }

    /// RFC 4231, test cases 1, 2 and 6.
    #[test]
    fn the_hmac_is_that_of_the_rfc() {
        let of = |key: &[u8], text: &str| hex(&hmac_sha256(key, &[text.as_bytes()]));
        assert!(of(&[0x0b; 20], "Hi There").starts_with("b0344c61d8db38535ca8afceaf0bf12b"));
        assert!(of(b"Jefe", "what do ya want for nothing?").starts_with("5bdcc146bf60754e6a042426089575c7"));
        let long = of(&[0xaa; 131], "Test Using Larger Than Block-Size Key - Hash Key First");
        assert!(long.starts_with("60e431591ee0b67f0d8a26aacbf5b77f"));
    }

    /// The example of the Standard Webhooks reference implementations.
    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(super::key("not base64!"), None);
        assert_eq!(super::key("whsec_"), None);
    }
}
