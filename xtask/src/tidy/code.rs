//! Rust text without its comments and literals, so that a rule about code does not fire on prose.

/// The same text with every comment, string and character literal replaced by spaces; lines keep their numbers.
pub(super) fn blanked(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        match end_of_prose(&chars, at) {
            Some(end) => {
                out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

/// Whether `word` stands in `line` as a whole identifier; its column, which counts from 0 in bytes.
pub(super) fn find_word(line: &str, word: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(|(at, _)| at)
        .find(|&at| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

/// Where the comment or literal that starts at `at` ends, if one does.
fn end_of_prose(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(position(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(quoted_end(chars, at + 1, '"')),
        'r' => raw_string_end(chars, at),
        '\'' => char_literal_end(chars, at),
        _ => None,
    }
}

fn position(chars: &[char], from: usize, found: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| found(c)).map_or(chars.len(), |offset| from + offset)
}

/// Block comments nest.
fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Behind the closing `quote`, with `from` behind the opening one.
fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// `r"…"`, `r#"…"#` and so on; a raw identifier and any other `r` are none.
fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let quote = position(chars, start + 1, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - start - 1;
    let mut at = quote + 1;
    while at < chars.len() {
        let behind = at + 1;
        let closes =
            chars[at] == '"' && chars[behind..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
        if closes {
            return Some(behind + hashes);
        }
        at = behind;
    }
    Some(chars.len())
}

/// `'x'` and `'\…'`; a lifetime is none.
fn char_literal_end(chars: &[char], start: usize) -> Option<usize> {
    match chars.get(start + 1) {
        Some('\\') => Some(quoted_end(chars, start + 1, '\'')),
        Some(_) if chars.get(start + 2) == Some(&'\'') => Some(start + 3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_gone_and_code_stays() {
        let cases = [
            ("a(); // b\nc", "a();     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"a("b \" c", d)"#, "a(        , d)"),
            (r###"a(r#"b "c" d"#, e)"###, "a(            , e)"),
            ("a(b'x', '\\'', '\"', c)", "a(b   ,     ,    , c)"),
            ("fn a<'b>(c: &'b str, r#d: u8)", "fn a<'b>(c: &'b str, r#d: u8)"),
            ("\"a\nb\" c", "  \n   c"),
            ("\"open", "     "),
        ];
        for (text, expected) in cases {
            assert_eq!(blanked(text), expected, "{text}");
        }
    }

    #[test]
    fn a_word_is_a_whole_identifier() {
        assert_eq!(find_word("let unsafe_code = 1; unsafe {", "unsafe"), Some(21));
        assert_eq!(find_word("not_unsafe(unsafe_code)", "unsafe"), None);
    }
}
