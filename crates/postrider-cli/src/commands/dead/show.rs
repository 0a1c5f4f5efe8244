//! `postrider dead show`.

use std::fmt::Write as _;

use clap::Args;
use postrider::log::parking::admin::{self, Parked, Selection, State};
use postrider::schema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::list;
use crate::commands::rights;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// Show dead or parked events whole: every field, the payload, and the history of refusals
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    target: Target,

    /// Ids of events
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    /// Only of this sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
}

impl Show {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        rights::require_log(&mut connection).await?;
        let selection =
            Selection { ids: self.ids, sink: self.sink, include_parked: true, ..Selection::default() };
        let parked = admin::list(&mut connection, &selection, 0, i64::MAX).await?;
        if parked.is_empty() {
            return Err(not_found(&selection));
        }
        let shown: Vec<String> =
            parked.iter().map(|event| if json { document(event) } else { words(event) }).collect();
        output::data(&shown.join(if json { "" } else { "\n" }))?;
        Ok(Exit::Fine)
    }
}

/// Ids were given and nothing has them.
pub(super) fn not_found(selection: &Selection) -> Failure {
    let place = selection.sink.as_ref().map(|sink| format!(" at sink {sink:?}")).unwrap_or_default();
    Failure::new(
        Exit::Failed,
        anyhow::anyhow!(
            "no parked event{place} has the id {}; `postrider where ID` says what became of an event",
            selection.ids.join(" or ")
        ),
    )
}

fn words(event: &Parked) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<13} {}", output::plain(value));
        }
    };
    line("id", Some(&event.id.to_string()));
    line("source id", event.source_id.as_deref());
    line("sink", Some(&event.sink));
    line("destination", Some(event.destination.as_str()).filter(|destination| !destination.is_empty()));
    line("type", Some(&event.r#type));
    line("entity", event.entity.as_deref());
    line("key", event.key.as_deref());
    line("tenant", event.tenant.as_deref());
    line("written", Some(&moment::text(event.created_at)));
    line("parked", Some(&moment::text(event.parked_at)));
    line("state", Some(event.state.word()));
    line("attempts", Some(&event.attempts.to_string()));
    // A dead one keeps the time of its last attempt.
    let next = event.next_attempt_at.filter(|_| event.state == State::Waiting);
    line("next attempt", next.map(moment::text).as_deref());
    line("waits behind", event.held_by.map(|id| id.to_string()).as_deref());
    line("kind", event.kind.as_deref());
    line("reason", event.reason.as_deref());
    line("headers", event.headers.as_deref());
    line("payload", Some(&event.payload));
    for refusal in history(event) {
        let part = |name: &str| refusal.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
        line("refused", Some(&format!("{} {}: {}", part("at"), part("kind"), part("reason"))));
    }
    text
}

fn history(event: &Parked) -> Vec<Value> {
    serde_json::from_str(&event.history).unwrap_or_default()
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: Value,
    history: Vec<Value>,
    headers: Option<Box<RawValue>>,
    payload: Option<Box<RawValue>>,
}

/// One line of JSON with the exact bytes of payload and headers.
fn document(event: &Parked) -> String {
    let document = Document {
        summary: list::summary(event),
        history: history(event),
        headers: event.headers.as_deref().and_then(output::on_one_line),
        payload: output::on_one_line(&event.payload),
    };
    let mut line = serde_json::to_string(&document).unwrap_or_default();
    line.push('\n');
    line
}
