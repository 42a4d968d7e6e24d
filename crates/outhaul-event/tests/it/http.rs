use outhaul_event::{Bytes, Event, HeaderError, HeaderValue, Limits};
use proptest::prelude::*;

use crate::encoding::any_event;

fn parse(headers: &[(&str, &[u8])], body: &'static [u8]) -> Result<Event, HeaderError> {
    Event::from_headers(headers.iter().copied(), Bytes::from_static(body), &Limits::default())
}

const REQUIRED: [(&str, &[u8]); 4] =
    [("Ce-Specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/s"), ("ce-type", b"t")];

proptest! {
    #[test]
    fn an_event_in_binary_mode_is_read_back(event in any_event()) {
        let headers = event.to_headers();
        let pairs = headers.iter().map(|(name, value)| (name.as_ref(), value.as_bytes()));
        let back = Event::from_headers(pairs, event.body().clone(), &Limits::default()).unwrap();
        prop_assert_eq!(back.id(), event.id());
        prop_assert_eq!(back.subject(), event.subject());
        prop_assert_eq!(back.pid(), event.pid());
        prop_assert_eq!(back.body(), event.body());
        for (name, value) in event.headers() {
            prop_assert_eq!(back.headers()[name].to_string(), value.to_string());
        }
    }
}

#[test]
fn a_body_has_a_content_type_even_if_it_is_only_implied() {
    let content_type = |rest: &str| {
        let text = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{rest}}}"#);
        let headers = Event::from_json(text.as_bytes(), &Limits::default()).unwrap().to_headers();
        headers.into_iter().find(|(name, _)| name == "content-type").map(|(_, value)| value)
    };
    assert_eq!(content_type(r#","data":{"a":1}"#).as_deref(), Some("application/json"));
    assert_eq!(content_type(r#","data_base64":"AA==""#), None, "bytes are not called JSON");
    assert_eq!(content_type(r#","data":"x","datacontenttype":"text/plain""#).as_deref(), Some("text/plain"));
    assert_eq!(content_type(r#","datacontenttype":"text/plain""#).as_deref(), Some("text/plain"));
    assert_eq!(content_type(""), None);
}

#[test]
fn headers_become_attributes() {
    let mut headers = REQUIRED.to_vec();
    headers.extend([
        ("content-type", &b"text/plain; charset=utf-8"[..]),
        ("ce-partitionkey", b"order-1"),
        ("ce-subject", b"Euro%20%E2%82%AC%20%F0%9F%98%80"),
        ("ce-note", b"\"quoted \\\"text\\\"\""),
        ("x-other", b"passed over"),
    ]);
    let event = parse(&headers, b"hello").unwrap();
    assert_eq!(event.subject(), Some("Euro € 😀"));
    assert_eq!(event.pid(), Some("order-1"));
    assert_eq!(event.headers()["note"], HeaderValue::Text("quoted \"text\"".to_owned()));
    assert_eq!(event.headers().len(), 1);
    assert_eq!(event.content_type(), Some("text/plain; charset=utf-8"));
}

#[test]
fn bad_headers_are_named() {
    let error = |extra: (&'static str, &'static [u8])| {
        let mut headers = REQUIRED.to_vec();
        headers.push(extra);
        parse(&headers, b"").unwrap_err().to_string()
    };
    assert!(error(("ce-id", b"2")).contains("`ce-id` is given twice"));
    assert!(error(("ce-subject", b"%FF")).contains("`ce-subject` is not percent-encoded UTF-8"));
    assert!(error(("ce-subject", b"%2")).contains("`ce-subject`"));
    assert!(error(("ce-bad-name", b"1")).contains("`bad-name` is not a valid name"));
    assert!(error(("ce-datacontenttype", b"a/b")).contains("may not be set"));
    assert!(parse(&REQUIRED[1..], b"").unwrap_err().to_string().contains("specversion"));
    let no_id: Vec<_> = REQUIRED.iter().copied().filter(|(name, _)| *name != "ce-id").collect();
    assert!(parse(&no_id, b"").unwrap_err().to_string().contains("`id` is missing"));
}
