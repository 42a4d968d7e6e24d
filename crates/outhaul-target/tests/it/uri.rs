//! A target's URI, taken apart.

use std::time::Duration;

use outhaul_target::{
    FailedCompat, FailedFull, Format, OPTION_KEYS, OnExhausted, OnReject, TargetOptions, TargetUri, WhenFull,
};
use proptest::prelude::*;

#[test]
fn the_url_stays_byte_for_byte_without_the_options() {
    let cases = [
        ("http://h", "http://h"),
        ("http://h/?", "http://h/?"),
        ("http://h/a?outhaul.batch=1", "http://h/a"),
        ("http://h/a?b=1&outhaul.batch=1", "http://h/a?b=1"),
        ("http://h/a?outhaul.batch=1&b=%20+&&c", "http://h/a?b=%20+&&c"),
        ("http://h/a?z&outhaul.batch=1&y=a?b#f", "http://h/a?z&y=a?b#f"),
        ("HTTP://H/A?outhaulx=1", "HTTP://H/A?outhaulx=1"),
        ("file:a b.ndjson?outhaul.timeout=1s", "file:a b.ndjson"),
        ("stdout:", "stdout:"),
    ];
    for (text, url) in cases {
        assert_eq!(TargetUri::parse(text).unwrap().url(), url);
    }
}

#[test]
fn every_common_option_is_read() {
    let query = "enabled=false format=s3 timeout=1m connect_timeout=250ms in_flight=2 batch=3 \
                 batch_bytes=64KiB linger=20ms rate=50 rate_bytes=1MiB retry_after_max=10m backoff=2s backoff_max=1h \
                 trial_backoff=1s trial_backoff_max=2m attempts_max=9 age_max=3d on_exhausted=fail \
                 on_reject=stop_pid when_full=overflow queue_bytes=10GiB queue_entries=5 \
                 failed_entries=6 failed_bytes=7 failed_full=hold_target failed_expire_after=8s \
                 failed_compat=rustfs";
    let pairs: Vec<String> = query.split_whitespace().map(|pair| format!("outhaul.{pair}")).collect();
    assert_eq!(pairs.len(), OPTION_KEYS.len());
    let uri = TargetUri::parse(&format!("http://h?{}", pairs.join("&"))).unwrap();
    let expected = TargetOptions {
        enabled: false,
        format: Format::S3,
        timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_millis(250),
        in_flight: 2.try_into().unwrap(),
        batch: Some(3.try_into().unwrap()),
        batch_bytes: Some(65_536.try_into().unwrap()),
        linger: Some(Duration::from_millis(20)),
        rate: Some(50.try_into().unwrap()),
        rate_bytes: Some((1 << 20).try_into().unwrap()),
        retry_after_max: Duration::from_secs(600),
        backoff: Duration::from_secs(2),
        backoff_max: Duration::from_secs(3_600),
        trial_backoff: Duration::from_secs(1),
        trial_backoff_max: Duration::from_secs(120),
        attempts_max: Some(9.try_into().unwrap()),
        age_max: Some(Duration::from_secs(3 * 86_400)),
        on_exhausted: OnExhausted::Fail,
        on_reject: OnReject::StopPid,
        when_full: WhenFull::Overflow,
        queue_bytes: Some((10 << 30).try_into().unwrap()),
        queue_entries: 5.try_into().unwrap(),
        failed_entries: Some(6.try_into().unwrap()),
        failed_bytes: Some(7.try_into().unwrap()),
        failed_full: Some(FailedFull::HoldTarget),
        failed_expire_after: Some(Duration::from_secs(8)),
        failed_compat: Some(FailedCompat::Rustfs),
    };
    assert_eq!(*uri.options(), expected);
    assert_eq!(uri.url(), "http://h");
    uri.finish().unwrap();
}

#[test]
fn what_is_not_valid_is_an_error_that_says_what_is() {
    let cases = [
        ("batch=0", "whole number above zero"),
        ("batch=+1", "whole number above zero"),
        ("batch=1&outhaul.batch=1", "given twice"),
        ("timeout=0s", "250ms or 5m"),
        ("timeout=5", "ms, s, m, h or d"),
        ("timeout=1.5s", "ms, s, m, h or d"),
        ("age_max=99999999d", "100 years"),
        ("queue_bytes=10GB", "KiB, MiB, GiB or TiB"),
        ("queue_bytes=99999999999TiB", "KiB, MiB, GiB or TiB"),
        ("format=xml", "cloudevents, body, s3"),
        ("on_exhausted=drop", "keep, fail"),
        ("on_exhausted=fail", "attempts_max"),
        ("on_reject=stop", "continue, stop_pid"),
        ("when_full=block", "refuse, shed, overflow"),
        ("queue_entries=0", "whole number above zero"),
        ("queue_bytes=0", "above zero"),
        ("failed_entries=0", "whole number above zero"),
        ("failed_bytes=0KiB", "above zero"),
        ("failed_full=drop", "hold_target, discard_oldest"),
        ("failed_expire_after=0h", "above zero"),
        ("failed_expire_after=3", "ms, s, m, h or d"),
        ("backoff=10m", "outhaul.backoff_max"),
        ("trial_backoff=2m", "outhaul.trial_backoff_max"),
        ("connect_timeout=31s", "outhaul.timeout"),
        ("batch", "outhaul.batch=VALUE"),
        ("format=%FF", "percent-encoded"),
    ];
    for (option, expected) in cases {
        let error =
            TargetUri::parse(&format!("http://me:s3cret@h/?key=s3cret&outhaul.{option}")).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{option}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(error.what().contains("outhaul."), "{error}");
    }
    for text in ["", "no-scheme", "/abs/path", "1a:b", ":x", "http://h/\n"] {
        assert!(TargetUri::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_bounds_of_the_failed_store_are_options() {
    let bounds = "outhaul.failed_entries=10&outhaul.failed_bytes=1MiB&outhaul.failed_full=discard_oldest";
    let uri = TargetUri::parse(&format!("http://h/?{bounds}&outhaul.failed_expire_after=72h")).unwrap();
    let options = uri.options();
    assert_eq!(options.failed_entries.map(|n| n.get()), Some(10));
    assert_eq!(options.failed_bytes.map(|n| n.get()), Some(1 << 20));
    assert_eq!(options.failed_full, Some(FailedFull::DiscardOldest));
    assert_eq!(options.failed_expire_after, Some(Duration::from_secs(72 * 3600)));
    assert_eq!(uri.url(), "http://h/");
}

#[test]
fn a_short_deadline_shortens_the_deadline_of_connecting() {
    let uri = TargetUri::parse("http://h?outhaul.timeout=2s").unwrap();
    assert_eq!(uri.options().connect_timeout, Duration::from_secs(2));
}

#[test]
fn an_option_that_the_kind_does_not_know_is_listed_with_those_it_does() {
    let mut uri = TargetUri::parse("http://me:s3cret@h?outhaul.mode=a%20b&outhaul.nope=s3cret").unwrap();
    assert_eq!(uri.take("mode").as_deref(), Some("a b"));
    assert_eq!(uri.take("mode"), None);
    assert!(!format!("{uri:?}").contains("s3cret"));
    let error = uri.finish().unwrap_err();
    assert_eq!(error.what(), "there is no option `outhaul.nope`");
    assert!(error.why().contains("mode") && error.why().contains("backoff_max"), "{error}");
    assert!(!error.to_string().contains("s3cret"));
}

#[test]
fn a_destination_has_no_credentials_and_tells_places_apart() {
    let of = |text: &str| TargetUri::parse(text).unwrap().destination();
    assert_eq!(of("https://me:a/b@H:443"), "https://h/");
    assert_eq!(of("https://h:8443/A"), "https://h:8443/A");
    assert_eq!(of("stdout:"), "stdout:");
    assert_eq!(of("https://h?t=1&outhaul.batch=1"), of("https://h/?t=1"));
    assert_ne!(of("https://h/?t=1"), of("https://h/?t=2"));
    assert_ne!(of("https://h/a"), of("https://h/b"));
    assert!(!of("https://h/?token=s3cret").contains("s3cret"));
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_without_showing_its_password(tail in "[ -~]{0,40}", password in "PW[a-z]{6}") {
        let text = format!("http://user:{password}@{tail}");
        match TargetUri::parse(&text) {
            Ok(uri) => {
                let shown = format!("{uri:?} {} {}", uri.destination(), uri.redacted());
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
            Err(error) => prop_assert!(!error.to_string().contains(&password), "{}", error),
        }
    }
}

#[test]
fn a_table_says_the_same_as_a_uri() {
    let options = [("timeout", "5s"), ("topic", "50% & more#x?=")];
    let mut uri = TargetUri::from_table("nats://h/a?b=1#f", options).unwrap();
    assert_eq!(uri.url(), "nats://h/a?b=1#f");
    assert_eq!(uri.options().timeout, Duration::from_secs(5));
    assert_eq!(uri.take("topic").as_deref(), Some("50% & more#x?="));
    for (text, options) in [
        ("nats://h?outhaul.timeout=1s", vec![("timeout", "5s")]),
        ("nats://h", vec![("timeout", "5s"), ("timeout", "5s")]),
        ("nats://h", vec![("timeout", "soon")]),
        ("nats://h", vec![("timeout", "")]),
    ] {
        assert!(TargetUri::from_table(text, options).is_err(), "{text}");
    }
}
