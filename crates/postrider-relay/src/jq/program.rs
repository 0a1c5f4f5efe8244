//! Runs the expressions of a sink on one event.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;

use jaq_core::{Ctx, Filter, Vars};
use jaq_json::{Val, read};

use super::meter::{Meter, Metered, Run, STEPS, Stop};
use super::{Verdict, output};
use crate::json;

/// Compiled once.
pub(crate) struct Program {
    pub(crate) filter: Option<Filter<Metered>>,
    pub(crate) transform: Option<Filter<Metered>>,
}

impl Program {
    /// The verdict, and whether the evaluation was stopped: then its thread has a deep stack behind it and better ends.
    pub(crate) fn judge(&self, input: &[u8], cancelled: &AtomicBool) -> (Verdict, bool) {
        let meter = Meter::new(cancelled);
        let judged = panic::catch_unwind(AssertUnwindSafe(|| self.evaluate(input, &meter)));
        match judged {
            Ok(Ok(verdict)) => (verdict, false),
            Ok(Err(reason)) => (Verdict::Fail(reason), false),
            Err(thrown) => {
                let reason = match thrown.downcast_ref::<Stop>() {
                    Some(Stop::Steps) => {
                        format!("filter or transform takes more than {STEPS} steps on this event")
                    }
                    Some(Stop::Depth) => "filter or transform recurses too deeply on this event".to_owned(),
                    Some(Stop::Cancelled) => "filter or transform takes too long on this event".to_owned(),
                    None => "jq failed inside itself on this event".to_owned(),
                };
                (Verdict::Fail(reason), true)
            }
        }
    }

    fn evaluate(&self, input: &[u8], meter: &Meter<'_>) -> Result<Verdict, String> {
        let event = match read::parse_single(input) {
            Ok(event) => event,
            // PostgreSQL keeps half a surrogate pair in `json`, for one. No expression helps.
            Err(error) => return Ok(Verdict::Beyond(format!("jq cannot read the event: {error}"))),
        };
        if let Some(filter) = &self.filter {
            let fail = |reason| format!("filter: {reason}");
            match one(filter, event.clone(), meter).map_err(fail)? {
                Val::Bool(true) => {}
                Val::Bool(false) => return Ok(Verdict::Drop),
                other => {
                    let other = output::display(&other, 100).0;
                    return Err(fail(format!("gives {other}, neither true nor false")));
                }
            }
        }
        let Some(transform) = &self.transform else { return Ok(Verdict::Keep) };
        // Not with `transform` before it: that is the kind of the refusal.
        one(transform, event, meter).and_then(|value| output::json(&value)).map(Verdict::Replace)
    }
}

/// The one value an expression gives.
fn one(filter: &Filter<Metered>, input: Val, meter: &Meter<'_>) -> Result<Val, String> {
    let context = Ctx::<Metered>::new(Run { lut: &filter.lut, meter }, Vars::new([]));
    let mut values = filter.id.run((context, input)).map(|value| {
        value.map_err(|thrown| match thrown.get_err() {
            Ok(error) => said(&error),
            Err(_) => "leaves the expression".to_owned(),
        })
    });
    let value = values.next().unwrap_or_else(|| Err("gives no value".to_owned()))?;
    match values.next() {
        None => Ok(value),
        Some(Ok(_)) => Err("gives more than one value".to_owned()),
        Some(Err(error)) => Err(error),
    }
}

/// What an error says: a string that was thrown is shown as it is, another value as JSON.
fn said(error: &jaq_json::Error) -> String {
    let (text, is_whole) = output::display(error, 1000);
    if !is_whole {
        return format!("{text}…");
    }
    let thrown =
        json::inside_quotes(&text).and_then(|text| serde_json::from_str(&format!("\"{text}\"")).ok());
    thrown.unwrap_or(text)
}
