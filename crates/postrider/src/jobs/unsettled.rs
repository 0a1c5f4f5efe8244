//! What has ended and is not stored yet, by claim. Pure: no database.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{HandlerResult, Outcome};

/// How long what has ended may wait for the rest of its claim: so much is done again at most if the worker dies.
const PATIENCE: Duration = Duration::from_millis(25);

/// No pause is longer. The server's times end somewhere, and a person's patience before that.
const LONGEST: Duration = Duration::from_hours(24 * 365 * 100);

/// For `postrider.settle_jobs`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settlement {
    pub(super) claim: i64,
    /// A JSON array, or nothing if all are simply done.
    pub(super) outcomes: Option<String>,
    /// Those that are done, as an array of the server's; nothing: all the rest, and the claim ends.
    pub(super) done: Option<String>,
}

/// How one job ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// As its handler said.
    Said(HandlerResult),
    /// As its handler said, in the handler's own transaction.
    Settled(HandlerResult),
    /// Too late: somebody else has it.
    Refused,
    /// Perhaps in the handler's own transaction: its commit was not answered.
    Doubtful(HandlerResult),
    /// It was not begun.
    Untouched,
}

/// The claims that are open.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    claims: HashMap<i64, Claim>,
}

#[derive(Debug, Default)]
struct Claim {
    left: usize,
    done: Vec<i64>,
    outcomes: Vec<String>,
    /// Said only when the claim ends: the database knows better, and leaves out what it has.
    doubtful: Vec<String>,
    oldest: Option<Instant>,
}

impl Unsettled {
    pub(super) fn claims(&self) -> usize {
        self.claims.len()
    }

    pub(super) fn add(&mut self, claim: i64) {
        self.claims.entry(claim).or_default().left += 1;
    }

    /// A job has ended; what is to be stored at once if it was the last one of its claim.
    pub(super) fn end(&mut self, claim: i64, id: i64, ended: &Ended) -> Option<Settlement> {
        let state = self.claims.get_mut(&claim)?;
        match ended {
            Ended::Said(Ok(Outcome::Done)) => state.done.push(id),
            Ended::Said(result) => state.outcomes.push(encode(id, result)),
            Ended::Untouched => state.outcomes.push(json!({"id": id, "untouched": true}).to_string()),
            Ended::Doubtful(result) => state.doubtful.push(encode(id, result)),
            Ended::Settled(_) | Ended::Refused => {}
        }
        state.oldest.get_or_insert_with(Instant::now);
        state.left -= 1;
        if state.left > 0 {
            return None;
        }
        let state = self.claims.remove(&claim)?;
        let outcomes = [state.outcomes, state.doubtful].concat();
        Some(Settlement { claim, outcomes: array(&outcomes), done: None })
    }

    /// What has waited long enough for the rest of its claim.
    pub(super) fn overdue(&mut self) -> Vec<Settlement> {
        let overdue = self.claims.iter_mut().filter(|(_, state)| {
            state.oldest.is_some_and(|oldest| oldest.elapsed() >= PATIENCE)
                && !(state.done.is_empty() && state.outcomes.is_empty())
        });
        overdue
            .map(|(claim, state)| {
                state.oldest = None;
                let done: Vec<String> = state.done.drain(..).map(|id| id.to_string()).collect();
                let outcomes = array(&std::mem::take(&mut state.outcomes));
                Settlement { claim: *claim, outcomes, done: Some(format!("{{{}}}", done.join(","))) }
            })
            .collect()
    }
}

fn array(outcomes: &[String]) -> Option<String> {
    (!outcomes.is_empty()).then(|| format!("[{}]", outcomes.join(",")))
}

/// An element of what `postrider.settle_jobs` takes.
pub(super) fn encode(id: i64, result: &HandlerResult) -> String {
    let outcome: Value = match result {
        Ok(Outcome::Done) => json!({"id": id}),
        Ok(Outcome::DoneWith(output)) => json!({"id": id, "output": cleaned(output.clone())}),
        Ok(Outcome::Snooze(time)) => json!({"id": id, "snooze": seconds(*time)}),
        Ok(Outcome::Retry { after, reason }) => {
            json!({"id": id, "error": clean(reason), "retry_in": seconds(*after)})
        }
        Ok(Outcome::Dead(reason)) => json!({"id": id, "error": clean(reason), "dead": true}),
        Ok(Outcome::Cancel) => json!({"id": id, "cancelled": true}),
        Err(error) => json!({"id": id, "error": clean(&chain(error.as_ref()))}),
    };
    outcome.to_string()
}

fn seconds(time: Duration) -> f64 {
    time.min(LONGEST).as_secs_f64()
}

/// The same for every text in it.
fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(values) => values.into_iter().map(cleaned).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (clean(&name), cleaned(value))).collect()
        }
        other => other,
    }
}

/// The server's text has no zero byte.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_whose_jobs_are_all_done_is_one_word() {
        let mut unsettled = Unsettled::default();
        unsettled.add(7);
        unsettled.add(7);
        assert_eq!(unsettled.end(7, 1, &Ended::Said(Ok(Outcome::Done))), None);
        let all = Settlement { claim: 7, outcomes: None, done: None };
        assert_eq!(unsettled.end(7, 2, &Ended::Said(Ok(Outcome::Done))), Some(all));
        assert_eq!(unsettled.claims(), 0);
    }

    /// Or the worker could never store it.
    #[test]
    fn what_the_server_cannot_keep_is_not_said() {
        let output = json!({"a\0": ["b\0", {"c": "\0"}]});
        let said = encode(7, &Ok(Outcome::DoneWith(output)));
        assert!(!said.contains("\\u0000") && said.contains('\u{fffd}'), "{said}");
        let said: Value = serde_json::from_str(&encode(7, &Ok(Outcome::Snooze(Duration::MAX)))).unwrap();
        assert_eq!(said["snooze"], LONGEST.as_secs_f64());
    }

    #[test]
    fn what_may_have_been_committed_is_said_last() {
        let mut unsettled = Unsettled::default();
        unsettled.add(7);
        unsettled.add(7);
        unsettled.end(7, 1, &Ended::Doubtful(Err("connection lost".into())));
        std::thread::sleep(PATIENCE);
        assert_eq!(unsettled.overdue(), []);
        let last = unsettled.end(7, 2, &Ended::Refused).unwrap();
        assert_eq!(last.outcomes.as_deref(), Some(r#"[{"error":"connection lost","id":1}]"#));
    }

    #[test]
    fn what_is_done_does_not_wait_for_what_takes_long() {
        let mut unsettled = Unsettled::default();
        unsettled.add(7);
        unsettled.add(7);
        unsettled.end(7, 1, &Ended::Said(Ok(Outcome::Done)));
        std::thread::sleep(PATIENCE);
        let part = Settlement { claim: 7, outcomes: None, done: Some("{1}".to_owned()) };
        assert_eq!(unsettled.overdue(), [part]);
        assert_eq!(unsettled.overdue(), []);
    }
}
