//! What is done about each kind of trouble, and what an operator is told: one table.

use std::fmt;

use crate::sink::{RefusalKind, UnavailableKind};

/// What the engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The sink waits with growing pauses; nothing is written, the log is the buffer.
    Wait,
    /// The relay ends: no waiting brings the sink back.
    End,
    /// The event is parked and tried again on the sink's schedule.
    Park,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// For machines: metrics, `parked.kind`, JSON.
    pub code: &'static str,
    /// What is done.
    pub action: Action,
    /// What happened, for people.
    pub what: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

const fn wait(code: &'static str, what: &'static str, advice: &'static str) -> Policy {
    Policy { code, action: Action::Wait, what, advice }
}

const fn park(code: &'static str, what: &'static str, advice: &'static str) -> Policy {
    Policy { code, action: Action::Park, what, advice }
}

impl UnavailableKind {
    /// Every kind there is.
    pub const ALL: [Self; 9] = [
        Self::Connection,
        Self::Timeout,
        Self::Blocked,
        Self::InUse,
        Self::Forbidden,
        Self::Missing,
        Self::Full,
        Self::Weak,
        Self::Gone,
    ];

    /// What is done about it.
    pub const fn policy(self) -> Policy {
        match self {
            Self::Connection => wait(
                "connection",
                "the sink cannot be reached",
                "check that it runs and that its address is right; delivery goes on by itself",
            ),
            Self::Timeout => wait(
                "timeout",
                "the sink did not confirm in time",
                "check its load; what was sent is sent again with the same id",
            ),
            Self::Blocked => wait(
                "blocked",
                "the sink asks for patience",
                "look for an alarm, a quota or a lost quorum there; delivery goes on by itself",
            ),
            Self::InUse => wait(
                "in_use",
                "another process has what only one can have",
                "end that process, or give this sink a place of its own; one that is stopped goes on after `kill -CONT` and ends by `kill \
                 -KILL`; delivery goes on by itself",
            ),
            Self::Forbidden => wait(
                "forbidden",
                "the sink does not let us in",
                "check user, password and permissions there; delivery goes on when they are right",
            ),
            Self::Missing => wait(
                "missing",
                "what the configuration names is not there",
                "create it or correct the configuration; delivery goes on when it is there",
            ),
            Self::Full => {
                wait("full", "the sink has no room left", "make room there; delivery goes on by itself")
            }
            Self::Weak => wait(
                "weak",
                "the sink keeps events worse than the configuration requires",
                "mend what the reason names, or lower `require_durability`; delivery goes on by itself",
            ),
            Self::Gone => Policy {
                action: Action::End,
                ..wait(
                    "gone",
                    "who took the events is gone for good",
                    "start the relay again where somebody takes them; what was not settled comes again",
                )
            },
        }
    }
}

impl RefusalKind {
    /// Every kind there is.
    pub const ALL: [Self; 7] = [
        Self::TooLarge,
        Self::Unroutable,
        Self::Rejected,
        Self::Transform,
        Self::BeyondJq,
        Self::Route,
        Self::Envelope,
    ];

    /// What is done about it.
    pub const fn policy(self) -> Policy {
        match self {
            Self::TooLarge => park(
                "too_large",
                "the event is larger than the sink takes",
                "raise the sink's limit and retry it, or discard it",
            ),
            Self::Unroutable => park(
                "unroutable",
                "nobody is there to take the event",
                "bind a queue or create the destination, then retry it",
            ),
            Self::Rejected => park(
                "rejected",
                "the sink refused the event",
                "read the reason, mend it and retry, or discard it",
            ),
            Self::Transform => park(
                "transform",
                "the filter or transform failed on the event",
                "mend the jq expression, reload, and retry it",
            ),
            Self::BeyondJq => park(
                "beyond_jq",
                "the event is beyond what filter and transform take",
                "keep payloads smaller and their text whole, or deliver such events by a sink without filter and transform; then retry or discard it",
            ),
            Self::Route => park(
                "route",
                "the routing template rendered no legal name",
                "mend the template or the event's fields, and retry it",
            ),
            Self::Envelope => park(
                "envelope",
                "the envelope could not be built from the event",
                "choose another envelope, or discard the event",
            ),
        }
    }
}

impl fmt::Display for UnavailableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy().what)
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy().what)
    }
}
