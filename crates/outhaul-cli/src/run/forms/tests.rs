use super::*;

fn form(pairs: &[(&'static str, &'static str)]) -> Option<Form> {
    Form::of(&headers(pairs))
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

#[test]
fn the_media_type_decides() {
    let ce = ("ce-specversion", "1.0");
    let typed = |value| ("content-type", value);
    for (pairs, expected) in [
        (&[typed("application/json")][..], Some(Form::Value)),
        (&[typed("Application/JSON; charset=UTF-8")], Some(Form::Value)),
        (&[typed("application/json; charset=latin1")], None),
        (&[typed("application/cloudevents+json")], Some(Form::Structured)),
        (&[typed("application/cloudevents+json"), ce], Some(Form::Structured)),
        (&[typed("application/cloudevents-batch+json")], Some(Form::Batch)),
        (&[typed("application/cloudevents+avro"), ce], None),
        (&[typed("application/x-ndjson")], Some(Form::Lines)),
        (&[typed("application/json"), ce], Some(Form::Binary)),
        (&[typed("image/png"), ce], Some(Form::Binary)),
        (&[ce], Some(Form::Binary)),
        (&[typed("application/x-www-form-urlencoded")], None),
        (&[typed("text/plain")], None),
        (&[], None),
        (&[typed("application/json"), ("content-encoding", "gzip")], None),
        (&[typed("application/json"), ("content-encoding", "identity")], Some(Form::Value)),
    ] {
        assert_eq!(form(pairs), expected, "{pairs:?}");
    }
}

fn faults(form: Form, body: &str) -> Vec<(u64, u64, u64)> {
    let reader = Reader::new("outhaul:http", None);
    let problem =
        form.read(&HeaderMap::new(), &Bytes::copy_from_slice(body.as_bytes()), &reader).unwrap_err();
    let problem: serde_json::Value = serde_json::to_value(problem.body()).unwrap();
    let errors = problem["errors"].as_array().unwrap();
    let number = |error: &serde_json::Value, key| error[key].as_u64().unwrap();
    errors.iter().map(|e| (number(e, "index"), number(e, "line"), number(e, "column"))).collect()
}

const GOOD: &str = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;

#[test]
fn each_fault_is_told_with_its_place() {
    let bad = r#"{"specversion":"1.0","id":""}"#;
    assert_eq!(faults(Form::Lines, &format!("{GOOD}\r\n\n{{x}}\n7\n{bad}")), [(1, 3, 2), (3, 5, 29)]);
    assert_eq!(
        faults(Form::Batch, &format!("[{GOOD},\n {bad},\n  {GOOD}, {bad}]")),
        [(1, 2, 30), (3, 3, 88)]
    );
    assert_eq!(faults(Form::Batch, "{}"), [(0, 1, 0)].map(|(i, l, _)| (i, l, 1)));
    assert_eq!(faults(Form::Batch, "[7]"), [(0, 1, 2)]);
    assert_eq!(faults(Form::Value, "{\n \"a\": }"), [(0, 2, 7)]);
    assert_eq!(faults(Form::Structured, "{}"), [(0, 1, 2)]);
}

#[test]
fn all_events_of_a_body_are_read() {
    let reader = Reader::new("outhaul:http", None);
    let read =
        |form: Form, body: String| form.read(&HeaderMap::new(), &Bytes::from(body), &reader).unwrap().len();
    assert_eq!(read(Form::Batch, format!("[{GOOD},{GOOD}]")), 2);
    assert_eq!(read(Form::Batch, "[]".to_owned()), 0);
    assert_eq!(read(Form::Lines, format!("\u{feff}{GOOD}\n7\n\n[1]")), 3);
    assert_eq!(read(Form::Value, "[1,2]".to_owned()), 1);
    assert_eq!(read(Form::Lines, "1\n".repeat(EVENTS_MAX)), EVENTS_MAX);
    let many = Form::Lines.read(&HeaderMap::new(), &Bytes::from("1\n".repeat(EVENTS_MAX + 1)), &reader);
    assert_eq!(serde_json::to_value(many.unwrap_err().body()).unwrap()["reason"], "too_large");
    let many = format!("[{}{GOOD}]", format!("{GOOD},").repeat(EVENTS_MAX));
    let many = Form::Batch.read(&HeaderMap::new(), &Bytes::from(many), &reader);
    assert_eq!(serde_json::to_value(many.unwrap_err().body()).unwrap()["reason"], "too_large");
}

#[test]
fn the_pid_of_an_event_in_binary_mode_comes_from_its_attributes_or_its_body() {
    let reader = Reader::new("outhaul:http", Some(crate::value::PidField::parse("order").unwrap()));
    let base = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
    let read = |more: &[(&'static str, &'static str)], body: &'static str| {
        Form::Binary.read(
            &headers(&[&base[..], more].concat()),
            &Bytes::from_static(body.as_bytes()),
            &reader,
        )
    };
    let pid = |more: &[_], body| read(more, body).unwrap()[0].pid().map(str::to_owned);
    assert_eq!(pid(&[], r#"{"order":7}"#).as_deref(), Some("7"));
    assert_eq!(pid(&[("ce-order", "outside")], r#"{"order":7}"#).as_deref(), Some("outside"));
    assert_eq!(pid(&[("ce-partitionkey", "own")], r#"{"order":7}"#).as_deref(), Some("own"));
    assert_eq!(pid(&[("content-type", "text/plain")], r#"{"order":7}"#), None);
    assert_eq!(pid(&[], ""), None);
    assert!(read(&[], r#"{"order":1.5}"#).is_err());
}
