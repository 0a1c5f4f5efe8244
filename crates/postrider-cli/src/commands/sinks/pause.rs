//! Pausing: stored at once, and true when the relays have noticed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use postrider::log::Mood;
use postrider::log::error::Result as LogResult;
use serde_json::json;
use sqlx::PgConnection;

use super::{Pause, open, store_paused, unknown};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

const STEP: Duration = Duration::from_millis(50);

pub(super) async fn run(command: &Pause, json: bool) -> Result<Exit, Failure> {
    let name = &command.name;
    let mut connection = open(&name.target).await?;
    let Some((before, now)) = store_paused(&mut connection, &name.sink, true).await? else {
        return Err(unknown(&mut connection, &name.sink).await?);
    };
    let silent = wait(&mut connection, &name.sink, command.wait.0).await?;
    let sink = output::plain(&name.sink);
    let mut text = match before {
        Some(since) => format!("{sink} is paused already, since {}", moment::short(since)),
        None => format!("{sink} is paused"),
    };
    if silent.is_empty() {
        text.push_str(": nothing arrives until it is resumed");
    } else {
        let (wait, silent) = (moment::span(command.wait.0), output::plain(&silent.join(", ")));
        let _ = write!(
            text,
            ", but {silent} did not say within {wait} that nothing is on its way any more: what it has in flight may still arrive"
        );
    }
    output::say(&text);
    if json {
        output::json(&json!({
            "sink": name.sink,
            "paused_at": now.map(moment::text),
            "changed": before.is_none(),
            "unconfirmed": silent,
        }))?;
    }
    Ok(if silent.is_empty() { Exit::Fine } else { Exit::Found })
}

/// Waits for the word of every relay that lives; those that have not given it in time. One that begins only now asks before it sends.
async fn wait(connection: &mut PgConnection, sink: &str, patience: Duration) -> LogResult<Vec<String>> {
    let begun = Instant::now();
    loop {
        let silent: Vec<String> = sqlx::query_scalar(
            // A word from before may be of an earlier pause.
            "select r.relay from postrider.relays r join postrider.sinks s on s.name = r.sink
             where r.sink = $1 and r.state <> $3 and (r.state <> $2 or r.heard_at < s.paused_at)
             order by r.relay",
        )
        .bind(sink)
        .bind(Mood::Paused.word())
        .bind(Mood::Failed.word())
        .fetch_all(&mut *connection)
        .await?;
        if silent.is_empty() || begun.elapsed() >= patience {
            return Ok(silent);
        }
        tokio::time::sleep(STEP).await;
    }
}
