//! [`Template`]: a subject, topic or key that is made out of an event's attributes.

use std::fmt::Write as _;

use outhaul_event::Event;

use crate::error::{DeliveryError, ErrorKind};

/// A text with `{attribute}` in it, such as `orders.{type}.{pid}`.
///
/// Every CloudEvents attribute can be named, headers included; `pid` stands for `partitionkey`. Two braces stand for
/// one. What an attribute holds is encoded where it would change the text's structure: see
/// [`render`](Self::render).
///
/// ```
/// use outhaul_target::outhaul_event::Event;
/// use outhaul_target::Template;
///
/// let template = Template::parse("orders.{type}.{pid}")?;
/// let event = Event::builder("paid", "/shop").pid("a.b c").build()?;
/// let unsafe_here = |c: char| ".*> ".contains(c);
/// assert_eq!(template.render(&event, unsafe_here)?, "orders.paid.a%2Eb%20c");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Attribute(String),
}

/// A text that is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace has no partner.
    #[error("`{0}` has a brace without a partner; write two for one")]
    Unbalanced(String),
    /// What stands between braces is no attribute's name.
    #[error("`{{{0}}}` is no attribute: their names are lower-case letters and digits")]
    Name(String),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// A brace without a partner, or a name that no attribute has.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let unbalanced = || TemplateError::Unbalanced(text.to_owned());
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            let (name, after) = rest.split_once('}').filter(|_| brace == "{").ok_or_else(unbalanced)?;
            let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            if name.is_empty() || !name.bytes().all(valid) {
                return Err(TemplateError::Name(name.to_owned()));
            }
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Attribute(name.to_owned()));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// The text, when it names no attribute.
    pub fn fixed(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text for one event. Of what an attribute holds, `%`, control characters and those that `is_unsafe` names
    /// become `%XX` for each byte, so that two values never make one text.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`]: the event does not have an attribute, or an empty one.
    pub fn render(&self, event: &Event, is_unsafe: impl Fn(char) -> bool) -> Result<String, DeliveryError> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Attribute(name) => {
                    let value = event.attribute(name).filter(|value| !value.is_empty());
                    encode(&value.ok_or_else(|| missing(name))?, &is_unsafe, &mut out);
                }
            }
        }
        Ok(out)
    }
}

fn encode(value: &str, is_unsafe: &dyn Fn(char) -> bool, out: &mut String) {
    for c in value.chars() {
        if c == '%' || c.is_control() || is_unsafe(c) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing into a String cannot fail.
                write!(out, "%{byte:02X}").unwrap_or_default();
            }
        } else {
            out.push(c);
        }
    }
}

fn missing(name: &str) -> DeliveryError {
    DeliveryError::new(ErrorKind::Malformed)
        .with_detail(format!("the event has no `{name}`, out of which its destination is made"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_put_in_and_encoded() {
        let event =
            Event::builder("com.x", "/s").id("1/2").pid("50%\u{e4}").header("tenant", "a#b").build().unwrap();
        let rendered = |text| Template::parse(text).unwrap().render(&event, |c| "./#".contains(c)).unwrap();
        assert_eq!(rendered("a/{type}/b/{id}"), "a/com%2Ex/b/1%2F2");
        assert_eq!(rendered("{partitionkey}{pid}"), "50%25\u{e4}50%25\u{e4}");
        assert_eq!(rendered("{tenant}"), "a%23b");
        assert_eq!(rendered("{{type}}"), "{type}");
        assert_eq!(rendered("plain"), "plain");
    }

    #[test]
    fn a_text_that_names_nothing_is_fixed() {
        assert_eq!(Template::parse("a.b").unwrap().fixed(), Some("a.b"));
        assert_eq!(Template::parse("").unwrap().fixed(), Some(""));
        assert_eq!(Template::parse("a.{type}").unwrap().fixed(), None);
    }

    #[test]
    fn a_missing_attribute_refuses_the_event() {
        let event = Event::builder("t", "/s").build().unwrap();
        let error = Template::parse("{pid}").unwrap().render(&event, |_| false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.detail().contains("no `pid`"), "{error:?}");
    }

    #[test]
    fn broken_templates_are_errors() {
        for text in ["{", "}", "a{b", "a}b", "{a}}"] {
            assert!(matches!(Template::parse(text), Err(TemplateError::Unbalanced(_))), "{text}");
        }
        for text in ["{}", "{A}", "{a b}", "{a.b}"] {
            assert!(matches!(Template::parse(text), Err(TemplateError::Name(_))), "{text}");
        }
    }
}
