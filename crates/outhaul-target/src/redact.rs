//! Keeps credentials out of texts.

use crate::options::OPTION_KEYS;

/// Blanks out what may be a credential in every URL of a text: user information and the values of its query.
///
/// ```
/// # use outhaul_target::redact;
/// assert_eq!(redact("at https://u:pw@h/p?key=1&x"), "at https://***@h/p?key=***&x");
/// assert_eq!(redact("file:x?outhaul.timeout=0s"), "file:x?outhaul.timeout=0s");
/// ```
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        redact_word(word, &mut out);
    }
    out
}

fn redact_word(word: &str, out: &mut String) {
    let Some(colon) = word.find(':') else { return out.push_str(word) };
    let (head, rest) = match word.find("://") {
        Some(at) => word.split_at(at + 3),
        None => word.split_at(colon + 1),
    };
    out.push_str(head);
    let rest = match user_information(rest) {
        Some(end) if head.ends_with("://") => {
            out.push_str("***");
            &rest[end..]
        }
        // Half of a password with a space in it: no port, and the `@` is in another word.
        None if head.ends_with("://") && !has_port(authority(rest)) => {
            out.push_str("***");
            &rest[rest.trim_end().len()..]
        }
        _ => rest,
    };
    match rest.split_once('?') {
        Some((before, query)) => {
            out.push_str(before);
            out.push('?');
            redact_query(query, out);
        }
        None => out.push_str(rest),
    }
}

/// Where the `@` stands that ends the user information.
pub(crate) fn user_information(after_scheme: &str) -> Option<usize> {
    let authority = authority(after_scheme);
    match authority.rfind('@') {
        // A password with a raw `/`, `?` or `#` in it: what looks like the port is none, and an `@` follows.
        None if !has_port(authority) => after_scheme.rfind('@'),
        at => at,
    }
}

fn authority(after_scheme: &str) -> &str {
    &after_scheme[..after_scheme.find(['/', '?', '#']).unwrap_or(after_scheme.len())]
}

/// Whether what follows the last colon, if there is one, can be a port.
fn has_port(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let port = port.trim_end_matches(|c: char| c.is_whitespace() || ")\"'`,;:.".contains(c));
    port.bytes().all(|b| b.is_ascii_digit()) || port.ends_with(']')
}

fn redact_query(query: &str, out: &mut String) {
    for (i, pair) in query.split('&').enumerate() {
        if i > 0 {
            out.push('&');
        }
        let Some((name, value)) = pair.split_once('=') else {
            out.push_str(pair);
            continue;
        };
        out.push_str(name);
        if name.strip_prefix("outhaul.").is_some_and(|key| OPTION_KEYS.contains(&key)) {
            // None of these is a secret, and an error about one is of no use without it.
            out.push('=');
            out.push_str(value);
            continue;
        }
        out.push_str("=***");
        // What closes a quotation around the URL stays readable.
        let end = value.trim_end_matches(|c: char| c.is_whitespace() || ")\"'`,;".contains(c)).len();
        out.push_str(&value[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_blank_and_the_rest_readable() {
        let cases = [
            ("plain words: 12:30", "plain words: 12:30"),
            ("https://h:80/a@b/c", "https://h:80/a@b/c"),
            ("https://me:s3@h/p", "https://***@h/p"),
            ("https://me@h", "https://***@h"),
            ("https://me:a/b?c#d@h/p", "https://***@h/p"),
            ("https://[::1]/a@b", "https://[::1]/a@b"),
            ("(https://h/?token=abc)", "(https://h/?token=***)"),
            ("`https://h/?t=a&u=b&v`: no", "`https://h/?t=***&u=***&v`: no"),
            ("http://me:s3 cret@h", "http://*** cret@h"),
            ("cannot reach http://h:80: no", "cannot reach http://h:80: no"),
            ("file:a?outhaul.secret=x", "file:a?outhaul.secret=***"),
        ];
        for (text, expected) in cases {
            assert_eq!(redact(text), expected);
        }
    }
}
