use super::*;

fn reader(field: Option<&str>) -> Reader {
    Reader::new("outhaul:pipe", field.map(|field| PidField::parse(field).unwrap()))
}

#[test]
fn any_value_becomes_data_as_it_is_spelt() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        r#"{"a":1.50,"a":2}"#,
        "[1, 2]",
        "\"x\"",
        "1e999",
        "123456789012345678901234567890",
        "null",
        "true",
        "{}",
        r#"{"data":{"specversion":"1.0"}}"#,
        &deep,
    ] {
        let event = reader(None).value(format!(" {text}\t").as_bytes()).unwrap();
        assert_eq!(&event.body()[..], text.as_bytes());
        assert_eq!((event.source(), event.kind(), event.pid()), ("outhaul:pipe", "outhaul.json", None));
        assert_eq!(event.content_type(), Some("application/json"));
        assert!(event.time().is_some_and(|time| time.ends_with('Z')));
        assert_eq!(event.id(), event.dedup_id().to_string());
    }
}

#[test]
fn an_object_with_specversion_must_be_a_cloudevent() {
    let good = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"specversion":1}}"#;
    let event = reader(None).value(good.as_bytes()).unwrap();
    assert_eq!((event.id(), event.kind()), ("1", "t"));
    for (bad, column, what) in [
        (r#"{"specversion":"1.0","id":"1","source":"/s"}"#, 44, "`type` is missing"),
        (r#"{"specversion":"0.3","id":"1"}"#, 20, "specversion"),
        (r#"{"specversion":"1.0","id":""}"#, 29, "`id` is empty"),
        (r#"{"specversion":"1.0","specversion":"1.0"}"#, 34, "twice"),
        (r#"{"specversion":"1.0","#, 21, "EOF"),
    ] {
        let error = reader(None).value(bad.as_bytes()).unwrap_err();
        assert!(error.message.contains(what), "{}", error.message);
        assert_eq!((error.line, error.column), (1, column), "{bad}: {}", error.message);
    }
    assert!(reader(None).cloudevent(b"{\"a\":1}").is_err());
    assert!(reader(None).cloudevent(b"[]").unwrap_err().message.contains("a CloudEvent"));
}

#[test]
fn the_place_of_an_error_is_a_byte() {
    for (bad, line, column) in [
        (&b"{\"a\":\"\xFF\"}"[..], 1, 7),
        ("{\"ä\":x}".as_bytes(), 1, 7),
        (b"{\"a\":1", 1, 6),
        (b"{} x", 1, 4),
        (b"{\n\"a\":\xC3\x28}", 2, 5),
        (b"nul", 1, 3),
        (b"01", 1, 2),
    ] {
        let error = reader(None).value(bad).unwrap_err();
        assert_eq!((error.line, error.column), (line, column), "{error} in {}", bad.escape_ascii());
    }
}

#[test]
fn the_pid_comes_from_a_field_and_a_partitionkey_wins() {
    let pid = |field, text: &str| {
        let event = reader(Some(field)).value(text.as_bytes()).unwrap();
        event.pid().map(str::to_owned)
    };
    let given = |rest: &str| format!(r#" {{"specversion":"1.0","id":"1","source":"/s","type":"t"{rest}}}"#);
    assert_eq!(pid("o", r#"{"o":"x","p":1}"#).as_deref(), Some("x"));
    assert_eq!(pid("o", r#"{"p":1}"#), None);
    assert_eq!(pid("/data/o", &given(r#","data":{"o":"q\"x"}"#)).as_deref(), Some("q\"x"));
    assert_eq!(pid("/data/o", &given(r#","data":{"o":7},"partitionkey":"k""#)).as_deref(), Some("k"));
    assert_eq!(pid("/data/o", &given(r#","data":{"o":7},"partitionkey":null"#)), None);
    assert_eq!(pid("o", &given("")), None);
    let error = reader(Some("o")).value(br#" {"o":""}"#).unwrap_err();
    assert_eq!(error.column, 7, "{error}");
    let error = reader(Some("/data/o")).value(given(r#","data":{"o":""}"#).as_bytes()).unwrap_err();
    assert_eq!(error.column, 69, "{error}");
}

#[test]
fn an_event_that_is_too_large_is_told_apart() {
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    assert!(reader(None).value(large.as_bytes()).unwrap_err().too_large);
    assert!(!reader(None).value(b"{").unwrap_err().too_large);
}
