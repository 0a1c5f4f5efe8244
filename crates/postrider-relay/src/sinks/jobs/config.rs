//! What a jobs sink is told.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;

use crate::redact::redact;
use crate::units::Span;

/// `jobs: { url: postgres://HOST/DATABASE }`
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobsConfig {
    /// The database with the job queue, this one or another; its user needs the role `postrider_emit` there.
    #[schemars(extend("writeOnly" = true, "examples" = ["postgres://127.0.0.1/app"]))]
    pub url: String,
    /// Which events become which jobs, by their type, with `*` for any part of it: `order.*`. Of several that fit, the longest counts; an event
    /// that none fits becomes no job. Without rules every event becomes a job of the kind that is its type.
    #[serde(default)]
    pub rules: BTreeMap<String, Rule>,
    /// For how long an event that comes again makes no second job. Longer than the log can be replayed by accident.
    #[serde(default = "remember")]
    pub remember: Span,
    /// How long the server may take to connect, and to take a batch.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

/// What becomes of events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The kind of the job; that is the event's type if nothing is said.
    #[serde(default)]
    pub kind: Option<String>,
    /// The queue; what `route` says if nothing is said here.
    #[serde(default)]
    pub queue: Option<String>,
    /// High first.
    #[serde(default)]
    pub priority: i16,
    /// How often it is tried.
    #[serde(default = "max_attempts")]
    pub max_attempts: u16,
    /// Jobs of events of one key run one after the other.
    #[serde(default)]
    pub keyed: bool,
}

fn remember() -> Span {
    Span(Duration::from_hours(14 * 24))
}

fn timeout() -> Span {
    Span(Duration::from_secs(10))
}

fn max_attempts() -> u16 {
    25
}

impl JobsConfig {
    /// The defaults, for this database.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), rules: BTreeMap::new(), remember: remember(), timeout: timeout() }
    }

    /// What can never work.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        let is_postgres = ["postgres://", "postgresql://"].iter().any(|scheme| self.url.starts_with(scheme));
        if !is_postgres || self.url.parse::<PgConnectOptions>().is_err() {
            wrong.push(("url", "write postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()));
        }
        if self.rules.values().any(|rule| !(1..=1000).contains(&rule.max_attempts)) {
            wrong.push(("rules", "max_attempts goes from 1 to 1000".to_owned()));
        }
        if self.timeout.0.is_zero() {
            wrong.push(("timeout", "nothing can be done in no time".to_owned()));
        }
        wrong
    }
}

/// Without the password.
impl fmt::Debug for JobsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobsConfig")
            .field("url", &redact(&self.url))
            .field("rules", &self.rules)
            .field("remember", &self.remember)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl JobsConfig {
    /// The rule for events of this type.
    pub(super) fn rule(&self, event_type: &str) -> Option<&Rule> {
        let fitting = self.rules.iter().filter(|(pattern, _)| fits(pattern, event_type));
        fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, rule)| rule)
    }
}

/// Whether an event of this type is meant.
fn fits(pattern: &str, event_type: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| event_type.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_part() {
        assert!(fits("*", "order.paid") && fits("order.*", "order.paid") && fits("*.paid", "order.paid"));
        assert!(fits("order.paid", "order.paid") && fits("o*r.*d", "order.paid"));
        assert!(
            !fits("order", "order.paid") && !fits("order.*", "orders.paid") && !fits("*.made", "order.paid")
        );
    }

    #[test]
    fn what_cannot_work_is_named_and_the_password_is_not() {
        let config = JobsConfig { timeout: Span(Duration::ZERO), ..JobsConfig::new("mysql://u:secret@h/d") };
        let wrong: Vec<&str> = config.objections().iter().map(|(key, _)| *key).collect();
        assert_eq!(wrong, ["url", "timeout"]);
        assert!(!format!("{config:?}").contains("secret"));
    }
}
