//! One level of a JSON text: values are passed over as they are, however deep they nest.

use std::fmt;

use outhaul::event::JsonError;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::at;

/// Finds members of an object by name. A name that is there twice is an error; others may be.
pub(super) fn members<'de, const N: usize>(
    text: &'de str,
    names: [&str; N],
) -> Result<[Option<&'de RawValue>; N], JsonError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let found = Members(names).deserialize(&mut parser);
    let found = found.and_then(|found| parser.end().map(|()| found));
    found.map_err(|e| JsonError::from_parser(&e))
}

struct Members<'a, const N: usize>([&'a str; N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Members<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(name) = map.next_key::<String>()? {
            match self.0.iter().position(|wanted| *wanted == name) {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(i) if found[i].is_some() => {
                    return Err(de::Error::custom(format_args!("`{name}` is given twice")));
                }
                Some(i) => found[i] = Some(map.next_value::<&RawValue>()?),
            }
        }
        Ok(found)
    }
}

/// The element of an array at an index. Stops behind it, so the rest is not looked at.
pub(super) fn element(text: &str, index: usize) -> Result<Option<&RawValue>, JsonError> {
    Ok(elements(text, index.saturating_add(1), Some(index))?.pop())
}

/// The elements of an array, as they are spelt; more than `max` of them are not read.
pub(crate) fn elements(text: &str, max: usize, only: Option<usize>) -> Result<Vec<&RawValue>, JsonError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let mut whole = true;
    let mut found = Vec::new();
    let seed = Elements { max, only, found: &mut found, whole: &mut whole };
    let read = seed.deserialize(&mut parser);
    if !whole {
        return Ok(found);
    }
    read.and_then(|()| parser.end()).map_err(|e| JsonError::from_parser(&e))?;
    Ok(found)
}

struct Elements<'a, 'de> {
    max: usize,
    only: Option<usize>,
    found: &'a mut Vec<&'de RawValue>,
    whole: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for Elements<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for i in 0.. {
            if i == self.max {
                *self.whole = false;
                return Ok(());
            }
            if self.only.is_some_and(|only| only != i) {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(());
                }
                continue;
            }
            match seq.next_element::<&RawValue>()? {
                Some(value) => self.found.push(value),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Where a part of a text begins in it.
pub(crate) fn offset_in(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

/// An error found in a part of a text, with its place in the whole.
pub(crate) fn in_whole(text: &str, part: &str, error: JsonError) -> JsonError {
    let start = at(text, offset_in(text, part), error.clone());
    let column = if error.line == 1 { start.column + error.column - 1 } else { error.column };
    JsonError { line: start.line + error.line - 1, column, ..error }
}
