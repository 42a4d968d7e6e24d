use outhaul_event::{Bytes, DecodeError, ENCODING_VERSION, Event, HeaderValue, Limits};
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 äß€/._-]{1,40}"
}

prop_compose! {
    pub(crate) fn any_event()(
        id in proptest::option::of(text()),
        source in "[a-z/]{1,20}",
        kind in text(),
        (pid, subject) in (proptest::option::of(text()), proptest::option::of(text())),
        time in proptest::option::of(Just("2026-11-30T02:45:00.123+01:00".to_owned())),
        body in proptest::collection::vec(any::<u8>(), 0..200),
        content_type in proptest::sample::select(vec!["application/json", "text/plain", "application/octet-stream"]),
        headers in proptest::collection::btree_map("x[a-z0-9]{0,10}", header(), 0..4),
    ) -> Event {
        let mut builder = Event::builder(kind, source).body(content_type, body);
        if let Some(id) = id { builder = builder.id(id); }
        if let Some(pid) = pid { builder = builder.pid(pid); }
        if let Some(subject) = subject { builder = builder.subject(subject); }
        if let Some(time) = time { builder = builder.time(time); }
        for (name, value) in headers { builder = builder.header(name, value); }
        builder.build().unwrap()
    }
}

fn header() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![
        text().prop_map(HeaderValue::Text),
        any::<i32>().prop_map(HeaderValue::Integer),
        any::<bool>().prop_map(HeaderValue::Boolean),
    ]
}

fn encoded(event: &Event) -> Bytes {
    let mut out = Vec::new();
    event.encode(&mut out);
    out.into()
}

proptest! {
    #[test]
    fn an_event_survives_its_encoding(event in any_event()) {
        let back = Event::decode(&encoded(&event)).unwrap();
        prop_assert_eq!(&back, &event);
        prop_assert_eq!(back.dedup_id(), event.dedup_id());
    }

    #[test]
    fn decoding_any_bytes_ends_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut framed = vec![ENCODING_VERSION, bytes.first().copied().unwrap_or(0) & 0x7F];
        framed.extend(&bytes);
        for bytes in [bytes, framed] {
            if let Ok(event) = Event::decode(&bytes.into()) {
                prop_assert!(event.size() <= 10_000);
            }
        }
    }

    #[test]
    fn an_encoding_cut_in_its_attributes_is_an_error(event in any_event(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&event);
        let attributes = bytes.len() - event.body().len();
        let cut = bytes.slice(..cut.index(attributes));
        prop_assert!(matches!(Event::decode(&cut), Err(DecodeError::Truncated(_))));
    }
}

/// The bytes of version 1 are on people's disks: this test fails when they change.
#[test]
fn the_bytes_of_version_1_do_not_change() {
    let event = Event::builder("t", "/s")
        .id("7")
        .pid("p")
        .header("a", HeaderValue::Integer(-2))
        .header("b", HeaderValue::Boolean(true))
        .header("c", "x")
        .json("{}")
        .build()
        .unwrap();
    let expected = b"\x01\x24\x017\x02/s\x01t\x01p\x10application/json\x03\x01a\x01\xfe\xff\xff\xff\x01b\x03\x01c\x00\x01x{}";
    assert_eq!(&encoded(&event)[..], &expected[..]);
}

#[test]
fn a_newer_version_is_named() {
    let error = Event::decode(&Bytes::from_static(&[9, 0])).unwrap_err();
    assert_eq!(error, DecodeError::Version(9));
}

#[test]
fn limits_are_enforced_when_building() {
    let small = Limits { body_bytes_max: 3, ..Limits::default() };
    let error = Event::builder("t", "/s").json("1234").build_within(&small).unwrap_err();
    assert!(error.is_too_large(), "{error}");
    let error = Event::builder("t", "/s").pid("").build().unwrap_err();
    assert!(!error.is_too_large());
    assert_eq!(error.to_string(), "`partitionkey` is empty; leave it out or give it a value");
    assert!(Event::builder("t", "/s").pid("x".repeat(257)).build().unwrap_err().is_too_large());
}
