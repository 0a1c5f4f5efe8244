//! `postrider dead list`.

use clap::Args;
use postrider::log::parking::admin::{self, Parked, State};
use postrider::schema;
use serde_json::{Value, json};

use super::selection::Which;
use crate::commands::{rights, sinks};
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// List dead events, the first that were parked first
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider dead list
  postrider dead list --sink web --error too_large --since 2h
  postrider dead list --parked --key 7         all that wait for this key")]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    which: Which,

    /// How many to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,

    /// Go on behind this place, as the end of a list says
    #[arg(long, value_name = "PLACE", default_value_t = 0)]
    after: i64,
}

impl List {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        rights::require_log(&mut connection).await?;
        let selection = self.which.selection(Vec::new());
        let matched = admin::count(&mut connection, &selection).await?;
        if let Some(sink) = selection.sink.as_deref().filter(|_| matched.events == 0) {
            sinks::require(&mut connection, sink).await?;
        }
        // One more than is shown tells whether there are more.
        let mut parked = admin::list(&mut connection, &selection, self.after, self.limit + 1).await?;
        let shown = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let next = (parked.len() > shown).then(|| parked[shown - 1].place);
        parked.truncate(shown);
        if json {
            let events: Vec<Value> = parked.iter().map(summary).collect();
            output::json(&json!({ "events": events, "matching": matched.events, "next": next }))?;
            return Ok(Exit::Fine);
        }
        if parked.is_empty() {
            output::say("none");
            return Ok(Exit::Fine);
        }
        output::data(&table(&parked))?;
        match next {
            Some(place) => output::say(&format!(
                "{} of {}; go on with --after {place}",
                parked.len(),
                output::events(matched.events)
            )),
            None => output::say(&output::events(matched.events)),
        }
        Ok(Exit::Fine)
    }
}

/// One line per event.
pub(super) fn table(parked: &[Parked]) -> String {
    const HEADINGS: &[&str] = &["ID", "SINK", "TYPE", "KEY", "STATE", "ATTEMPTS", "PARKED", "REASON"];
    let rows: Vec<Vec<String>> = parked
        .iter()
        .map(|event| {
            vec![
                event.id.to_string(),
                output::plain(&event.sink),
                shortened(output::plain(&event.r#type), 60),
                output::plain(event.key.as_deref().unwrap_or("-")),
                event.state.word().to_owned(),
                event.attempts.to_string(),
                moment::short(event.parked_at),
                why(event),
            ]
        })
        .collect();
    output::table(HEADINGS, &rows)
}

/// Why it is here, on one line.
pub(super) fn why(event: &Parked) -> String {
    const LONGEST: usize = 100;
    let text = match (event.held_by, &event.kind, &event.reason) {
        (Some(held_by), ..) => format!("waits behind {held_by}"),
        (None, Some(kind), Some(reason)) => format!("{kind}: {reason}"),
        (None, Some(only), None) | (None, None, Some(only)) => only.clone(),
        (None, None, None) => "-".to_owned(),
    };
    shortened(output::plain(&text), LONGEST)
}

fn shortened(text: String, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text;
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

/// Without payload and history: those are for `show`.
pub(super) fn summary(event: &Parked) -> Value {
    json!({
        "id": event.id.to_string(),
        "source_id": event.source_id,
        "sink": event.sink,
        "destination": event.destination,
        "type": event.r#type,
        "entity": event.entity,
        "key": event.key,
        "tenant": event.tenant,
        "state": event.state.word(),
        "attempts": event.attempts,
        "kind": event.kind,
        "reason": event.reason,
        "held_by": event.held_by.map(|id| id.to_string()),
        "created_at": moment::text(event.created_at),
        "parked_at": moment::text(event.parked_at),
        "next_attempt_at": event.next_attempt_at.filter(|_| event.state == State::Waiting).map(moment::text),
        "place": event.place,
    })
}
