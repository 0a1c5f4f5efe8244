//! JSON as text: written by hand into one buffer, and looked into without building a tree.
//!
//! What comes from the log was checked by the database, so nothing here checks it again. No function recurses: a payload may be
//! nested ten thousand levels deep.

use std::borrow::Cow;

use time::{OffsetDateTime, UtcOffset};

/// Bytes that cannot stand in a JSON string as they are.
const ESCAPED: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

/// Appends a JSON string, quotes included.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    out.push(b'"');
    let mut from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if !ESCAPED[usize::from(byte)] {
            continue;
        }
        out.extend_from_slice(&bytes[from..at]);
        from = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
}

/// Appends a string, or `null`.
pub(crate) fn push_optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => push_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends a time as RFC 3339 in UTC with microseconds, `2026-02-03T04:05:06.000007Z`, without quotes.
pub(crate) fn push_time(out: &mut Vec<u8>, at: OffsetDateTime) {
    let at = at.checked_to_offset(UtcOffset::UTC).unwrap_or(at);
    let (date, time) = (at.date(), at.time());
    push_digits(out, date.year().unsigned_abs(), 4);
    out.push(b'-');
    push_digits(out, u32::from(u8::from(date.month())), 2);
    out.push(b'-');
    push_digits(out, u32::from(date.day()), 2);
    out.push(b'T');
    push_digits(out, u32::from(time.hour()), 2);
    out.push(b':');
    push_digits(out, u32::from(time.minute()), 2);
    out.push(b':');
    push_digits(out, u32::from(time.second()), 2);
    out.push(b'.');
    push_digits(out, time.microsecond(), 6);
    out.push(b'Z');
}

/// Appends exactly so many decimal digits.
fn push_digits(out: &mut Vec<u8>, mut number: u32, digits: usize) {
    let mut text = [b'0'; 6];
    for digit in text[..digits].iter_mut().rev() {
        // A remainder of ten fits.
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
    out.extend_from_slice(&text[..digits]);
}

/// Whether this can be JSON at all, by its first character: enough to tell a payload from nothing or from `NaN`.
pub(crate) fn looks_like_json(text: &str) -> bool {
    let first = text.bytes().find(|byte| !is_space(*byte));
    matches!(first, Some(b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'))
}

/// Whether arrays and objects are nested no deeper than this.
pub(crate) fn is_within_depth(text: &[u8], most: usize) -> bool {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = text.get(at) {
        at = match byte {
            b'"' => match string_end(text, at) {
                Some(end) => end,
                None => return true,
            },
            b'[' | b'{' => {
                depth += 1;
                if depth > most {
                    return false;
                }
                at + 1
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            _ => at + 1,
        };
    }
    true
}

/// The members of an object as they are written: names without their quotes, values with theirs. Nothing if it is no object.
pub(crate) fn members(object: &str) -> Members<'_> {
    let start = skip_space(object.as_bytes(), 0);
    let is_object = object.as_bytes().get(start) == Some(&b'{');
    Members { text: object, at: if is_object { start + 1 } else { object.len() } }
}

/// See [`members`].
pub(crate) struct Members<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        let mut at = skip_space(bytes, self.at);
        if bytes.get(at) == Some(&b',') {
            at = skip_space(bytes, at + 1);
        }
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        let name_end = string_end(bytes, at)?;
        let colon = skip_space(bytes, name_end);
        let value = skip_space(bytes, colon + 1);
        let end = value_end(bytes, value)?;
        self.at = end;
        Some((self.text.get(at + 1..name_end - 1)?, self.text.get(value..end)?))
    }
}

/// The value at a path of names, as it is written. The last of several members of one name counts.
pub(crate) fn lookup<'a>(text: &'a str, path: &[String]) -> Option<&'a str> {
    path.iter().try_fold(text, |object, name| {
        members(object).filter(|(raw, _)| is_named(raw, name)).last().map(|(_, value)| value)
    })
}

/// Whether a name as it is written in JSON is this one.
pub(crate) fn is_named(raw: &str, name: &str) -> bool {
    if memchr::memchr(b'\\', raw.as_bytes()).is_none() {
        return raw == name;
    }
    unescape(raw).is_some_and(|text| text == name)
}

/// What a string says, given without its quotes. Nothing if it has an escape that stands for no character.
pub(crate) fn unescape(raw: &str) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', raw.as_bytes()).is_none() {
        return Some(Cow::Borrowed(raw));
    }
    serde_json::from_str(&format!("\"{raw}\"")).ok().map(Cow::Owned)
}

/// What is between the quotes of a string; nothing for other values.
pub(crate) fn inside_quotes(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while text.get(at).copied().is_some_and(is_space) {
        at += 1;
    }
    at
}

/// Where the string that begins here ends, behind its closing quote.
fn string_end(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Where the value that begins here ends.
fn value_end(text: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => at = string_end(text, at)?,
            b'[' | b'{' => {
                depth += 1;
                at += 1;
            }
            b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            _ if depth == 0 => {
                // A number or a word.
                let rest = text.get(at..)?;
                let length =
                    rest.iter().position(|byte| is_space(*byte) || matches!(byte, b',' | b']' | b'}'));
                return Some(at + length.unwrap_or(rest.len()));
            }
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> String {
        let mut out = Vec::new();
        push_string(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn strings_are_escaped_as_a_json_library_reads_them() {
        let all: String = (0..0x250).filter_map(char::from_u32).collect();
        for text in ["", "plain", "\"", "\\", "a\"b\\c\nd", "\u{0}\u{1f}\u{7f}", "żółć 🐎 \u{2028}", &all]
        {
            assert_eq!(serde_json::from_str::<String>(&string(text)).unwrap(), text);
        }
    }

    #[test]
    fn times_have_six_digits_of_a_second() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_706_547_200_000_007_999).unwrap();
        let mut out = Vec::new();
        push_time(&mut out, at.to_offset(UtcOffset::from_hms(5, 30, 0).unwrap()));
        assert_eq!(out, b"2024-01-29T16:53:20.000007Z");
    }

    #[test]
    fn members_are_found_whatever_is_between_them() {
        let object = " { \"a\" : 1 ,\n\"b\":{\"a\":[1,\"]}\"]}, \"c\\\"\":\"x,y\" ,\"d\": true}";
        let found: Vec<_> = members(object).collect();
        assert_eq!(found, [("a", "1"), ("b", "{\"a\":[1,\"]}\"]}"), ("c\\\"", "\"x,y\""), ("d", "true")]);
        for none in ["", "[]", "{}", " { } ", "null", "\"{\"", "{\"a\"", "{\"a\":", "{\"a\":[", "{\"a\":]"] {
            assert_eq!(members(none).count(), 0, "{none}");
        }
    }

    #[test]
    fn a_path_is_followed_and_the_last_of_equal_names_counts() {
        let path = |path: &str| path.split('.').map(str::to_owned).collect::<Vec<_>>();
        let text = r#"{"a":{"b":1,"\u0062":2},"c":[{"b":3}]}"#;
        assert_eq!(lookup(text, &path("a.b")), Some("2"));
        assert_eq!(lookup(text, &path("c")), Some(r#"[{"b":3}]"#));
        assert_eq!(lookup(text, &path("c.b")), None);
        assert_eq!(lookup(text, &path("a.b.c")), None);
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert!(is_within_depth(br#"[["[[[["]]"#, 2));
        assert!(!is_within_depth(br#"[[{"a":1}]]"#, 2));
        assert!(is_within_depth(br#"{"a":[],"b":[],"c":"\"["}"#, 2));
    }
}
