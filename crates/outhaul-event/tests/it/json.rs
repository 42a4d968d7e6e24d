use outhaul_event::{Event, HeaderValue, JsonError, Limits};
use proptest::prelude::*;

use crate::encoding::any_event;

fn parse(text: &str) -> Result<Event, JsonError> {
    Event::from_json(text.as_bytes(), &Limits::default())
}

fn error(text: &str) -> String {
    let error = parse(text).unwrap_err();
    format!("{}:{} {}", error.line, error.column, error.message)
}

fn with(members: &str) -> String {
    format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{members}}}"#)
}

proptest! {
    #[test]
    fn a_structured_event_is_read_back(event in any_event()) {
        let json = event.to_json();
        prop_assert!(!json.contains(&b'\n'));
        let back = Event::from_json(&json, &Limits::default()).unwrap();
        prop_assert_eq!(back.id(), event.id());
        prop_assert_eq!(back.pid(), event.pid());
        prop_assert_eq!(back.headers(), event.headers());
        prop_assert_eq!(back.body(), event.body());
        prop_assert_eq!(back.to_json(), json);
    }
}

/// From the JSON event format, section 3.2 (examples).
#[test]
fn the_examples_of_the_specification_are_read() {
    let event = parse(
        r#"{"specversion":"1.0","type":"com.example.someevent","source":"/mycontext","subject":null,
        "id":"C234-1234-1234","time":"2018-04-05T17:31:00Z","comexampleextension1":"value",
        "comexampleothervalue":5,"datacontenttype":"application/vnd.apache.thrift.binary","data_base64":"AAEC/w=="}"#,
    )
    .unwrap();
    assert_eq!(event.subject(), None);
    assert_eq!(event.headers()["comexampleothervalue"], HeaderValue::Integer(5));
    assert_eq!(&event.body()[..], [0, 1, 2, 255]);
    let xml = parse(&with(r#","datacontenttype":"application/xml","data":"<much wow=\"xml\"/>""#)).unwrap();
    assert_eq!(&xml.body()[..], br#"<much wow="xml"/>"#);
    assert!(String::from_utf8(xml.to_json()).unwrap().contains(r#""data":"<much wow=\"xml\"/>""#));
}

#[test]
fn numbers_keep_their_spelling_and_an_event_is_one_line() {
    let event = parse(&with(",\"data\":{\n \"a\":1.10,\r\n\"b\":123456789012345678901234567890}")).unwrap();
    let json = String::from_utf8(event.to_json()).unwrap();
    assert!(json.ends_with(r#""data":{ "a":1.10,"b":123456789012345678901234567890}}"#), "{json}");
}

#[test]
fn a_body_that_is_not_what_its_type_says_travels_as_base64() {
    let event = Event::builder("t", "/s").json("no json").build().unwrap();
    assert!(String::from_utf8(event.to_json()).unwrap().contains(r#""data_base64":"bm8ganNvbg==""#));
    let event = Event::builder("t", "/s").body("text/plain", &b"\xff"[..]).build().unwrap();
    assert!(String::from_utf8(event.to_json()).unwrap().contains(r#""data_base64":"/w==""#));
}

#[test]
fn errors_name_what_and_where() {
    for (text, expected) in [
        ("", "1:1 it is not JSON: it ends where a value is expected"),
        ("[]", "1:1 invalid type: sequence, expected a CloudEvent, which is a JSON object"),
        (&with("").replace(r#""id":"1","#, ""), "1:46 `id` is missing; CloudEvents 1.0 requires it"),
        (&with("").replace("1.0", "0.3"), "1:20 `specversion` is \"0.3\"; only \"1.0\" is known"),
        (&with(r#","partitionkey":"""#), "1:73 `partitionkey` is empty; leave it out or give it a value"),
        (&with(r#","id":"2""#), "1:59 `id` is given twice"),
        (
            &with(r#","Bad":1"#),
            "1:63 `Bad` is not a valid name: only lower-case letters a-z and digits are allowed",
        ),
        (&with(r#","x":[1]"#), "1:63 `x` must be a string, a boolean or an integer"),
        (&with(r#","subject":5"#), "1:67 `subject` must be a string"),
        (&with("x"), "1:55 it is not JSON: expected `,` or `}`"),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
    for (member, part) in [
        (r#","x":3000000000"#, "integer range"),
        (r#","time":"yesterday""#, "RFC 3339"),
        (r#","datacontenttype":"json""#, "media type"),
        (r#","data":1,"data_base64":"AA==""#, "only one"),
        (r#","data_base64":"?""#, "base64"),
        (",\"subject\":\"a\\u0007\"", "U+0007"),
        (r#","dataschema":"a b""#, "URI"),
    ] {
        let message = error(&with(member));
        assert!(message.contains(part), "{member}: {message}");
    }
}

#[test]
fn a_limit_is_told_from_a_broken_rule() {
    let long = with(&format!(r#","subject":"{}""#, "x".repeat(1025)));
    assert!(parse(&long).unwrap_err().too_large);
    let many: String = (0..65).map(|i| format!(",\"x{i}\":1")).collect();
    assert!(parse(&with(&many)).unwrap_err().too_large);
    assert!(!parse(&with(",")).unwrap_err().too_large);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let good = with("");
    let read = |text: &str| Event::batch_from_json(text.as_bytes(), &Limits::default());
    assert_eq!(read(&format!("[{good},{good}]")).unwrap().len(), 2);
    assert_eq!(read("[]").unwrap().len(), 0);
    assert!(read(&format!("[{good},{{}}]")).is_err());
    assert!(read(&good).is_err());
}

#[test]
fn deep_nesting_is_an_error_or_read_but_never_a_crash() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    if let Ok(event) = parse(&with(&format!(",\"data\":{deep}"))) {
        assert!(!event.to_json().is_empty());
    }
    assert!(parse(&with(&format!(",\"x\":{deep}"))).is_err());
}

#[test]
fn what_is_no_json_is_told_in_words() {
    for (text, expected) in [
        ("{\"id\": x", "1:8 it is not JSON: expected a value"),
        ("{\"id\": tru}", "1:11 it is not JSON: expected `true`, `false` or `null`"),
        ("{\n\"id\": \"1", "2:8 it is not JSON: it ends inside of a string"),
        ("{", "1:1 it is not JSON: it ends inside of an object"),
        ("{\"x\":[1", "1:7 it is not JSON: it ends inside of an array"),
        ("{id:1}", "1:2 it is not JSON: expected a name in double quotes"),
        ("{\"id\":\"1\",}", "1:11 it is not JSON: a comma stands before a closing bracket"),
        ("{\"id\":\"a\tb\"}", "1:9 it is not JSON: a control character in a string is not escaped"),
        ("{\"id\":\"\\x\"}", "1:9 it is not JSON: invalid escape"),
        ("{\"x\":1e999}", "1:10 a number is out of range"),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}
