//! Entries that hold more than one item: JSON values one after the other, with or without white space between.

use std::ops::Range;

use serde_json::value::RawValue;

use super::rqp1::InvalidEntry;

/// Where each value of a batch is. Fewer or more values than the count are an error, never a part of them.
pub fn split(bytes: &[u8], count: u64) -> Result<Vec<Range<usize>>, InvalidEntry> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<&RawValue>();
    let mut found = Vec::new();
    loop {
        let index = found.len() as u64;
        match values.next() {
            // The shortest value is one byte, so the bytes bound the list whatever the count is.
            Some(Ok(value)) if index < count => {
                let end = values.byte_offset();
                found.push(end - value.get().len()..end);
            }
            Some(Ok(_)) => return Err(InvalidEntry::Count { count, found: index + 1 }),
            // A value that the end of the file cuts is one that is missing.
            Some(Err(error)) if error.is_eof() => return Err(InvalidEntry::Count { count, found: index }),
            Some(Err(error)) => return Err(InvalidEntry::Value { index, reason: error.to_string() }),
            None if index == count => return Ok(found),
            None => return Err(InvalidEntry::Count { count, found: index }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_batch_has_exactly_as_many_values_as_its_name_says() {
        let bytes = br#"{"a":1}{"b":"}{"}[3]"#;
        let values: Vec<_> = split(bytes, 3).unwrap().into_iter().map(|range| &bytes[range]).collect();
        assert_eq!(values, [&br#"{"a":1}"#[..], br#"{"b":"}{"}"#, b"[3]"]);
        assert_eq!(split(bytes, 2), Err(InvalidEntry::Count { count: 2, found: 3 }));
        assert_eq!(split(bytes, 4), Err(InvalidEntry::Count { count: 4, found: 3 }));
        assert_eq!(split(bytes, u64::MAX), Err(InvalidEntry::Count { count: u64::MAX, found: 3 }));
        assert_eq!(split(b"{}\n{}\n", 2).unwrap(), [0..2, 3..5]);
    }

    #[test]
    fn a_batch_that_is_cut_is_never_a_part_of_it() {
        let bytes = br#"{"a":1}{"b":22}"#;
        for end in 0..bytes.len() {
            assert!(split(&bytes[..end], 2).is_err(), "cut at {end}");
        }
        assert!(matches!(split(b"{}x", 2), Err(InvalidEntry::Value { index: 1, .. })));
        let deep = "[".repeat(100_000);
        assert!(split(deep.as_bytes(), 2).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0_u64..5) {
            if let Ok(values) = split(&bytes, count) {
                prop_assert_eq!(values.len() as u64, count);
            }
        }

        #[test]
        fn any_values_are_found_again(numbers in proptest::collection::vec(any::<u32>(), 1..9)) {
            let text: String = numbers.iter().map(|n| format!("{{\"n\":{n}}}")).collect();
            let found = split(text.as_bytes(), numbers.len() as u64).unwrap();
            for (range, n) in found.into_iter().zip(numbers) {
                prop_assert_eq!(&text[range], format!("{{\"n\":{n}}}"));
            }
        }
    }
}
