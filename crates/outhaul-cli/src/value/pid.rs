//! [`PidField`]: where in a value its pid stands.

use outhaul::event::JsonError;

use super::at;
use super::scan::{element, in_whole, members, offset_in};

/// `--pid-field`: the name of a member, or a JSON pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidField {
    shown: String,
    path: Vec<String>,
}

/// A pid, and the byte of the text at which it stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pid {
    pub(super) text: String,
    pub(super) offset: usize,
}

impl PidField {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let shown = text.to_owned();
        let Some(pointer) = text.strip_prefix('/') else {
            if text.is_empty() {
                return Err(
                    "it is empty: write a member's name, or a JSON pointer such as /order/id".to_owned()
                );
            }
            return Ok(Self { path: vec![shown.clone()], shown });
        };
        let path: Option<Vec<_>> = pointer.split('/').map(unescape).collect();
        let path = path.ok_or("in a JSON pointer `~` is written `~0`, and `/` inside of a name `~1`")?;
        Ok(Self { shown, path })
    }

    /// Looks for it. A text that has been parsed before is valid JSON.
    pub(super) fn find(&self, text: &str) -> Result<Option<Pid>, JsonError> {
        self.find_in(text, text)
    }

    /// Looks for it in a part of a text; its place is one in the whole.
    pub(super) fn find_in(&self, text: &str, part: &str) -> Result<Option<Pid>, JsonError> {
        let mut here = part;
        for token in &self.path {
            let found = match here.trim_ascii_start().as_bytes().first() {
                Some(b'{') => members(here, [token]).map(|[value]| value),
                Some(b'[') => match index(token) {
                    Some(index) => element(here, index),
                    None => Ok(None),
                },
                _ => Ok(None),
            };
            match found.map_err(|error| in_whole(text, here, error))? {
                Some(value) => here = value.get(),
                None => return Ok(None),
            }
        }
        let offset = offset_in(text, here);
        let pid = if here.starts_with('"') {
            let read = serde_json::from_str::<String>(here).map_err(|e| JsonError::from_parser(&e));
            read.map_err(|error| in_whole(text, here, error))?
        } else if is_integer(here) {
            here.to_owned()
        } else {
            let message = format!(
                "`{}`, which holds the pid, is {}; it must be a string or an integer",
                self.shown,
                name_of(here)
            );
            return Err(at(text, offset, JsonError { line: 1, column: 1, message, too_large: false }));
        };
        Ok(Some(Pid { text: pid, offset }))
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        out.push(match (c, c == '~') {
            (_, true) => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            (c, false) => c,
        });
    }
    Some(out)
}

/// The index of an array: digits without a leading zero.
fn index(token: &str) -> Option<usize> {
    let plain = token.bytes().all(|b| b.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
    token.parse().ok().filter(|_| plain)
}

fn is_integer(json: &str) -> bool {
    let digits = json.strip_prefix('-').unwrap_or(json);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

fn name_of(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number that is no integer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(field: &str, text: &str) -> Result<Option<(String, usize)>, (usize, String)> {
        let field = PidField::parse(field).unwrap();
        let found = field.find(text).map_err(|e| (e.column, e.message))?;
        Ok(found.map(|pid| (pid.text, pid.offset)))
    }

    #[test]
    fn a_name_or_a_pointer_leads_to_the_pid() {
        let cases = [
            ("id", r#"{"a":1,"id":"x"}"#, Some(("x", 12))),
            ("id", r#"{"id": -42 }"#, Some(("-42", 7))),
            ("id", r#"{"id":123456789012345678901234567890}"#, Some(("123456789012345678901234567890", 6))),
            ("id", r#"{"i\u0064":"\u00e9"}"#, Some(("é", 11))),
            ("/a/b", r#"{"a":{"b":"x"}}"#, Some(("x", 10))),
            ("/a/1/b", r#"{"a":[0,{"b":7}]}"#, Some(("7", 13))),
            ("/0", r#"["x"]"#, Some(("x", 1))),
            ("/a~1b/c~0d", r#"{"a/b":{"c~d":1}}"#, Some(("1", 14))),
            ("/", r#"{"":"x"}"#, Some(("x", 4))),
            ("a/b", r#"{"a/b":"x"}"#, Some(("x", 7))),
            ("/a/01", r#"{"a":[1,2]}"#, None),
            ("/a/-", r#"{"a":[1]}"#, None),
            ("/a/9", r#"{"a":[1]}"#, None),
            ("/a/b/c", r#"{"a":{"b":null}}"#, None),
            ("id", "[1]", None),
            ("id", "7", None),
            ("id", r#"{"a":{"id":1}}"#, None),
        ];
        for (field, text, expected) in cases {
            let expected = expected.map(|(pid, offset)| (pid.to_owned(), offset));
            assert_eq!(find(field, text), Ok(expected), "{field} in {text}");
        }
    }

    #[test]
    fn what_is_neither_string_nor_integer_is_refused_where_it_stands() {
        for (value, name) in [
            ("null", "null"),
            ("true", "a boolean"),
            ("1.5", "a number"),
            ("1e3", "a number"),
            ("{}", "an object"),
            ("[1]", "an array"),
        ] {
            let (column, message) = find("id", &format!(r#"{{"id":{value}}}"#)).unwrap_err();
            assert_eq!(column, 7, "{value}");
            assert!(message.contains(name), "{message}");
        }
        assert!(find("id", r#"{"id":1,"id":2}"#).unwrap_err().1.contains("twice"));
        assert!(find("/a/id", r#"{"a":{"id":1,"id":2}}"#).unwrap_err().1.contains("twice"));
        assert_eq!(find("id", r#"{"id":"\ud800"}"#).unwrap_err().0, 14);
    }

    #[test]
    fn a_field_is_checked() {
        for bad in ["", "/a~", "/~2"] {
            assert!(PidField::parse(bad).is_err(), "{bad}");
        }
    }
}
