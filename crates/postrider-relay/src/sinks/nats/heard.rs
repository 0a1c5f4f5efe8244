//! What the server, or the client library, says without being asked.

use std::collections::HashMap;

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
                *self.denials.entry(subject.to_owned()).or_default() += 1;
            }
            _ => return false,
        }
        true
    }
}

/// The subject of `Permissions Violation for Publish to "SUBJECT"`.
fn denied(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("Permissions Violation for Publish to \"")?;
    rest.split_once('"').map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_heard_by_its_subject() {
        let mut heard = Heard::default();
        let said = |text: &str| Event::ServerError(ServerError::Other(text.to_owned()));
        assert!(heard.note(&said("Permissions Violation for Publish to \"events.a.b\"")));
        assert!(!heard.note(&said("Permissions Violation for Subscription to \"events.a.b\"")));
        assert!(!heard.note(&Event::Connected));
        assert_eq!((heard.denials("events.a.b"), heard.denials("events.a"), heard.is_lost), (1, 0, false));
        assert!(heard.note(&Event::Disconnected) && heard.is_lost);
    }
}
