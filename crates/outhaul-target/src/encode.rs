//! The body formats, the same for every target. Bytes in, bytes out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use outhaul_event::{Bytes, Event, STRUCTURED_TYPE};
use serde_json::value::RawValue;

use crate::error::{DeliveryError, ErrorKind};
use crate::options::Format;

/// A body, and what its content type is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The media type; None if there is no body and the producer gave none.
    pub content_type: Option<Cow<'a, str>>,
    /// The bytes.
    pub body: Bytes,
}

/// Writes an event for a protocol without headers: CloudEvents are structured JSON.
///
/// # Errors
/// [`ErrorKind::Malformed`] if the event cannot be written in this format.
pub fn message(event: &Event, format: Format) -> Result<Message<'_>, DeliveryError> {
    Ok(match format {
        Format::CloudEvents => {
            Message { content_type: Some(STRUCTURED_TYPE.into()), body: event.to_json().into() }
        }
        Format::Body => data(event),
        Format::S3 => Message { content_type: Some("application/json".into()), body: s3(event)?.into() },
    })
}

/// The data alone, and its content type (the producer's, or the JSON that is implied): format `body`, and the body of CloudEvents in binary mode.
pub fn data(event: &Event) -> Message<'_> {
    Message { content_type: event.effective_content_type().map(Cow::Borrowed), body: event.body().clone() }
}

/// Appends an event as one line, without a line feed at its end and without one in it.
///
/// # Errors
/// [`ErrorKind::Malformed`]: the event cannot be written in this format, or `body` is text of several lines or bytes
/// that are no text. The buffer is then as it was.
pub fn line(event: &Event, format: Format, out: &mut Vec<u8>) -> Result<(), DeliveryError> {
    match format {
        Format::CloudEvents => event.write_json(out),
        Format::Body => body_line(event, out)?,
        Format::S3 => out.extend_from_slice(&s3(event)?),
    }
    Ok(())
}

fn body_line(event: &Event, out: &mut Vec<u8>) -> Result<(), DeliveryError> {
    let body = event.body();
    let breaks = body.iter().any(|b| matches!(b, b'\n' | b'\r'));
    if breaks && serde_json::from_slice::<&RawValue>(body).is_ok() {
        push_on_one_line(body, out);
    } else if breaks {
        return Err(malformed(
            "the data has several lines and is no JSON, so that it does not fit on one line",
        ));
    } else if std::str::from_utf8(body).is_err() {
        return Err(malformed("the data is no text, so that it cannot be a line"));
    } else {
        out.extend_from_slice(body);
    }
    Ok(())
}

/// Writes `{"EventName": type, "Key": pid or subject, "Records": [data]}` on one line. Data that is such an object
/// already goes as it is.
///
/// # Errors
/// [`ErrorKind::Malformed`] if the data is no JSON object.
pub fn s3(event: &Event) -> Result<Vec<u8>, DeliveryError> {
    let body = event.body();
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(body)
        .map_err(|_| malformed("the data is no JSON object, which the format `s3` needs"))?;
    let mut out = Vec::with_capacity(body.len() + 128);
    if ["EventName", "Key", "Records"].iter().all(|name| members.contains_key(*name)) {
        push_on_one_line(body, &mut out);
        return Ok(out);
    }
    let key = event.pid().or(event.subject()).unwrap_or_default();
    let text = |text: &str| serde_json::Value::from(text).to_string();
    out.extend_from_slice(
        format!(r#"{{"EventName":{},"Key":{},"Records":["#, text(event.kind()), text(key)).as_bytes(),
    );
    push_on_one_line(body, &mut out);
    out.extend_from_slice(b"]}");
    Ok(out)
}

/// In valid JSON a line feed can only stand between tokens, so it can be left out.
fn push_on_one_line(json: &[u8], out: &mut Vec<u8>) {
    out.extend(json.trim_ascii().iter().filter(|b| !matches!(b, b'\n' | b'\r')));
}

fn malformed(detail: &str) -> DeliveryError {
    DeliveryError::new(ErrorKind::Malformed).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(content_type: &str, body: &'static str) -> Event {
        Event::builder("s3:ObjectCreated:Put", "/store")
            .id("1")
            .pid("bucket/a\"b")
            .body(content_type, body)
            .build()
            .unwrap()
    }

    fn written(event: &Event, format: Format) -> Result<String, ErrorKind> {
        let mut out = Vec::new();
        line(event, format, &mut out).map_err(|e| e.kind())?;
        assert!(!out.contains(&b'\n'));
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn s3_wraps_data_and_keeps_what_is_wrapped_already() {
        let wrapped = written(&event("application/json", "{\"size\":\n 1.50}"), Format::S3).unwrap();
        let expected =
            r#"{"EventName":"s3:ObjectCreated:Put","Key":"bucket/a\"b","Records":[{"size": 1.50}]}"#;
        assert_eq!(wrapped, expected);
        let as_it_is = r#"{"Records":[],"Key":"k","EventName":"e","more":1}"#;
        assert_eq!(written(&event("application/json", as_it_is), Format::S3).unwrap(), as_it_is);
    }

    #[test]
    fn s3_refuses_what_is_no_object() {
        for body in ["[1]", "\"text\"", "", "{", "{}{}"] {
            assert_eq!(
                written(&event("application/json", body), Format::S3),
                Err(ErrorKind::Malformed),
                "{body}"
            );
        }
    }

    #[test]
    fn the_key_falls_back_to_the_subject() {
        let event = Event::builder("t", "/s").subject("sub").json("{}").build().unwrap();
        assert_eq!(written(&event, Format::S3).unwrap(), r#"{"EventName":"t","Key":"sub","Records":[{}]}"#);
    }

    #[test]
    fn a_body_is_one_line_or_refused() {
        assert_eq!(written(&event("application/json", "[1,\r\n 2]\n"), Format::Body).unwrap(), "[1, 2]");
        assert_eq!(written(&event("text/plain", "plain text"), Format::Body).unwrap(), "plain text");
        assert_eq!(written(&event("text/plain", "two\nlines"), Format::Body), Err(ErrorKind::Malformed));
        let binary = Event::builder("t", "/s").body("image/png", vec![0x89, 0xFF]).build().unwrap();
        assert_eq!(written(&binary, Format::Body), Err(ErrorKind::Malformed));
    }

    #[test]
    fn a_message_carries_its_content_type() {
        let event = event("text/plain", "hello");
        let of = |format| message(&event, format).map(|m| m.content_type.map(Cow::into_owned)).unwrap();
        assert_eq!(of(Format::CloudEvents).as_deref(), Some("application/cloudevents+json"));
        assert_eq!(of(Format::Body).as_deref(), Some("text/plain"));
        assert_eq!(message(&event, Format::Body).unwrap().body, "hello");
        let implied = |data: &str| {
            let text = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{data}}}"#);
            let event = Event::from_json(text.as_bytes(), &outhaul_event::Limits::default()).unwrap();
            message(&event, Format::Body).unwrap().content_type.map(Cow::into_owned)
        };
        assert_eq!(implied(r#","data":7"#).as_deref(), Some("application/json"));
        assert_eq!(implied(""), None);
    }
}
