//! What the server, or the client library, says without being asked.

use std::collections::HashMap;
use std::str::Chars;

use async_nats::{Event, ServerError};

/// So many subjects are remembered. One that was forgotten is waited for, until the time is over.
const MOST: usize = 1000;

/// Of one connection.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) is_lost: bool,
    /// How often the server has said that this user may not publish to a subject. It is all that it says then: there is no answer.
    denials: HashMap<String, u64>,
}

impl Heard {
    pub(super) fn denials(&self, subject: &str) -> u64 {
        self.denials.get(subject).copied().unwrap_or_default()
    }

    /// Whether it is anything that somebody waits for.
    pub(super) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::Disconnected | Event::Closed => self.is_lost = true,
            Event::ServerError(ServerError::Other(said)) => {
                let Some(subject) = denied(said) else { return false };
                if self.denials.len() >= MOST {
                    self.denials.clear();
                }
                *self.denials.entry(subject).or_default() += 1;
            }
            _ => return false,
        }
        true
    }
}

/// The subject of `Permissions Violation for Publish to "SUBJECT"`, which the server writes as Go quotes texts (`%q`).
fn denied(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("Permissions Violation for Publish to \"")?;
    unquoted(rest)
}

/// What Go has quoted, up to the closing quote.
fn unquoted(quoted: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(quoted.len());
    let mut rest = quoted.chars();
    loop {
        let found = match rest.next()? {
            '"' => return String::from_utf8(bytes).ok(),
            '\\' => match rest.next()? {
                'a' => '\x07',
                'b' => '\x08',
                'f' => '\x0c',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\x0b',
                'u' => char::from_u32(hex(&mut rest, 4)?)?,
                'U' => char::from_u32(hex(&mut rest, 8)?)?,
                // A byte, which may be a part of a character.
                'x' => {
                    bytes.push(u8::try_from(hex(&mut rest, 2)?).ok()?);
                    continue;
                }
                other => other,
            },
            other => other,
        };
        bytes.extend_from_slice(found.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

fn hex(rest: &mut Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0_u32, |number, _| number.checked_mul(16)?.checked_add(rest.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_heard_by_its_subject() {
        let mut heard = Heard::default();
        let said = |text: &str| Event::ServerError(ServerError::Other(text.to_owned()));
        assert!(heard.note(&said("Permissions Violation for Publish to \"events.a.b\"")));
        assert!(heard.note(&said(r#"Permissions Violation for Publish to "events.a\\b""#)));
        assert_eq!(heard.denials(r"events.a\b"), 1);
        assert!(!heard.note(&said("Permissions Violation for Subscription to \"events.a.b\"")));
        assert!(!heard.note(&Event::Connected));
        assert_eq!((heard.denials("events.a.b"), heard.denials("events.a"), heard.is_lost), (1, 0, false));
        assert!(heard.note(&Event::Disconnected) && heard.is_lost);
    }

    /// By `fmt.Printf("%q")`.
    #[test]
    fn a_subject_is_read_as_go_quotes_it() {
        for (quoted, subject) in [
            (r#"events.a""#, "events.a"),
            (r#"events.a\\b""#, r"events.a\b"),
            (r#"events.a\"b""#, "events.a\"b"),
            (r#"events.a\\""#, r"events.a\"),
            (r#"a\a\b\f\n\r\t\v""#, "a\x07\x08\x0c\n\r\t\x0b"),
            (r#"a\x00\x7f""#, "a\0\x7f"),
            (r#"a\u200b\u00ad""#, "a\u{200b}\u{ad}"),
            (r#"a\U000e0001""#, "a\u{e0001}"),
            (r#"é'\xc3\xa9" and more"#, "é'é"),
        ] {
            assert_eq!(unquoted(quoted).as_deref(), Some(subject), "{quoted}");
        }
        for torn in
            ["events.a", r"a\", r#"a\x0""#, r#"a\u12""#, r#"a\ud800""#, r#"\xff""#, r#"a\UFFFFFFFFF""#]
        {
            assert_eq!(unquoted(torn), None, "{torn}");
        }
    }
}
