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
        (r#"{"specversion":"1.0","#, 21, "it ends where"),
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
    // An attribute that is null is not set (CloudEvents JSON format, section 2.2).
    assert_eq!(pid("/data/o", &given(r#","data":{"o":7},"partitionkey":null"#)).as_deref(), Some("7"));
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

#[test]
fn the_field_of_a_cloudevent_is_looked_up_in_it_and_then_in_its_data() {
    let given = |rest: &str| format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{rest}}}"#);
    for (field, rest, expected) in [
        ("order", r#","data":{"order":"inside"}"#, Some("inside")),
        ("order", r#","order":"outside","data":{"order":"inside"}"#, Some("outside")),
        ("subject", r#","subject":"s","data":{"subject":"inside"}"#, Some("s")),
        ("order", r#","data":[1]"#, None),
        ("order", r#","data":"text""#, None),
        ("order", r#","data":{"other":1}"#, None),
        ("order", r#","data":{"order":"inside"},"partitionkey":"own""#, Some("own")),
        ("/order/id", r#","data":{"order":{"id":42}}"#, Some("42")),
        ("/data/order/id", r#","data":{"order":{"id":42},"data":{"order":{"id":1}}}"#, Some("42")),
        ("/data/order", r#","data":{"data":{"order":"deeper"}}"#, Some("deeper")),
        ("/1", r#","data":[0,"x"]"#, Some("x")),
    ] {
        let event = reader(Some(field)).value(given(rest).as_bytes()).unwrap();
        assert_eq!(event.pid(), expected, "{field} in {rest}");
        let event = reader(Some(field)).cloudevent(given(rest).as_bytes()).unwrap();
        assert_eq!(event.pid(), expected, "{field} in {rest}");
    }
    for (field, rest, value) in [
        ("order", r#","data":{"order":1.5}"#, "1.5"),
        ("order", r#","order":true,"data":{"order":"x"}"#, "true"),
        ("/order/id", r#","data":{"order":{"id":null}}"#, "null"),
        ("order", r#","data":{"order":""}"#, "\"\""),
    ] {
        let text = given(rest);
        let error = reader(Some(field)).value(text.as_bytes()).unwrap_err();
        let column = text.find(value).unwrap() + 1;
        assert_eq!((error.line, error.column), (1, column), "{field} in {rest}: {error}");
    }
}
