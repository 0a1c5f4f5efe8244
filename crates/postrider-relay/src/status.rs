//! What a relay shows of itself: one snapshot per sink, for health, metrics and people.

use std::time::{Duration, SystemTime};

use postrider::log::Mood;

use crate::redact::redact;
use crate::sink::UnavailableKind;

/// A sink as this relay sees it.
#[derive(Debug, Clone)]
pub struct SinkStatus {
    /// Its name.
    pub name: String,
    /// `file`, `rabbitmq`, …
    pub kind: &'static str,
    /// What it is doing.
    pub state: State,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// The lanes this relay holds for it.
    pub lanes: Vec<i16>,
    /// Events sent and not yet settled.
    pub in_flight: usize,
    /// Events delivered since the relay started.
    pub delivered: u64,
    /// When the last one was confirmed.
    pub last_delivery: Option<SystemTime>,
    /// How long ago its loop last turned. The loop turns at least once a second, whatever happens: more means stuck.
    pub silent_for: Duration,
    /// Why producers do not wake it, if they do not (it looks by itself then).
    pub silence: Option<String>,
    /// Everything written up to here that has committed is settled in the lanes held.
    pub settled_position: Option<i64>,
}

/// What a sink's pipeline is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Opening its reader.
    Starting,
    /// Carrying events, or waiting for some to come.
    Running,
    /// Other relays hold all its lanes.
    Standby,
    /// The sink cannot take events now.
    Waiting {
        /// What kind of trouble.
        kind: UnavailableKind,
        /// What happened, with its causes.
        reason: String,
        /// How often it was tried in a row.
        attempt: u32,
    },
    /// Somebody paused it.
    Paused,
    /// The log cannot be read, or progress not stored; the database is tried again, and nothing is sent twice meanwhile.
    Disconnected {
        /// What happened, with its causes.
        reason: String,
    },
    /// Needs a person.
    Failed {
        /// What happened and the remedy.
        reason: String,
    },
    /// It ended as it was told.
    Stopped,
}

impl State {
    /// Whether a relay in this state does its work.
    pub fn is_well(&self) -> bool {
        matches!(self, Self::Running | Self::Standby | Self::Paused)
    }

    /// One word, for metrics and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Standby => "standby",
            Self::Waiting { .. } => "waiting",
            Self::Paused => "paused",
            Self::Disconnected { .. } => "disconnected",
            Self::Failed { .. } => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// What is wrong, in words that anybody may read.
    pub fn trouble(&self) -> Option<String> {
        let trouble = match self {
            Self::Waiting { kind, reason, attempt } => format!("{kind} (attempt {attempt}): {reason}"),
            Self::Disconnected { reason } => format!("the log cannot be read: {reason}"),
            Self::Failed { reason } => reason.clone(),
            _ => return None,
        };
        Some(redact(&trouble))
    }

    /// What to do about it.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Waiting { kind, .. } => Some(kind.policy().advice),
            Self::Disconnected { .. } => Some("check that the database runs; it is tried again by itself"),
            Self::Paused => Some("go on with `postrider sinks resume`"),
            _ => None,
        }
    }

    /// As the log keeps it for those who ask the database.
    pub(crate) fn mood(&self) -> Mood {
        match self {
            Self::Waiting { .. } => Mood::Waiting,
            Self::Disconnected { .. } => Mood::Disconnected,
            Self::Failed { .. } => Mood::Failed,
            Self::Paused => Mood::Paused,
            Self::Starting | Self::Running | Self::Standby | Self::Stopped => Mood::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_without_secrets() {
        let reason = "cannot connect to amqp://me:c4n4ry@host".to_owned();
        let waiting =
            State::Waiting { kind: UnavailableKind::Connection, reason: reason.clone(), attempt: 2 };
        for state in [waiting, State::Disconnected { reason: reason.clone() }, State::Failed { reason }] {
            let trouble = state.trouble().unwrap();
            assert!(trouble.contains("amqp://me:***@host"), "{trouble}");
        }
        assert_eq!(State::Running.trouble(), None);
    }
}
