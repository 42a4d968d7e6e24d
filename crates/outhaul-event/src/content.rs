//! What a media type says about a body.

/// Whether a content type declares JSON: the subtype is `json` or ends in `+json` (CloudEvents JSON format,
/// section 3.1). No content type at all means JSON as well; that case is the caller's.
pub fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let Some((_, subtype)) = media.split_once('/') else { return false };
    let subtype = subtype.as_bytes();
    subtype.eq_ignore_ascii_case(b"json")
        || (subtype.len() > 5 && subtype[subtype.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// `type "/" subtype` of RFC 2046, with whatever parameters follow: enough to keep nonsense out.
pub(crate) fn is_media_type(text: &str) -> bool {
    let media = text.split(';').next().unwrap_or_default().trim_end();
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
    };
    media.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_the_subtype() {
        for yes in ["application/json", "text/JSON; charset=utf-8", "application/cloudevents+json"] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["", "json", "application/jsonp", "application/+xml", "text/plain"] {
            assert!(!is_json(no), "{no}");
        }
    }

    #[test]
    fn a_media_type_has_two_tokens() {
        assert!(is_media_type("text/plain; charset=utf-8"));
        for no in ["", "text", "text/", "/plain", "te xt/plain", "text/pl\u{e9}"] {
            assert!(!is_media_type(no), "{no}");
        }
    }
}
