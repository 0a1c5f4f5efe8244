//! Dead letters, and where they go if the broker does not take them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::Shared;
use super::source::{Grave, Link, Message, Trouble};

/// So often a letter is offered to the broker, each time over a new connection. Then the database keeps it.
const OFFERS: u32 = 5;
/// Of so many letters it is known how often they were offered.
const MOST_KNOWN: usize = 10_000;

/// How often the broker has refused which letter since the process began.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<u64, u32>>);

impl Refusals {
    fn count(&self, letter: u64) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        let refused = known.entry(letter).or_default();
        *refused += 1;
        *refused
    }

    fn forget(&self, letter: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&letter);
    }
}

/// Keeps a message with the broker's dead letters; one that the broker refuses again and again, or for good, in the database: otherwise it would come
/// back for ever, and everything behind it would wait.
pub(super) async fn bury<L: Link>(
    shared: &Shared,
    link: &L,
    message: &Message,
    grave: &Grave<'_>,
) -> Result<(), Trouble> {
    let letter = mark(message);
    let trouble = match link.bury(message, grave).await {
        Ok(()) => {
            shared.refusals.forget(letter);
            return Ok(());
        }
        Err(trouble) => trouble,
    };
    shared.telemetry.letter_refused();
    let refused = shared.refusals.count(letter);
    tracing::warn!(%trouble, refused, event = grave.event_id, "the broker did not take a dead letter");
    if trouble.is_passing && refused < OFFERS {
        return Err(trouble);
    }
    keep(shared, message, grave, &trouble).await.map_err(Trouble::away)?;
    shared.refusals.forget(letter);
    shared.telemetry.letter_kept();
    tracing::error!(%trouble, event = grave.event_id, "a dead letter that the broker refuses is kept in postrider.dead_messages");
    Ok(())
}

/// The same for every delivery of a message.
fn mark(message: &Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&message.place, &message.id, &message.body).hash(&mut hasher);
    hasher.finish()
}

async fn keep(shared: &Shared, message: &Message, grave: &Grave<'_>, refused: &Trouble) -> sqlx::Result<()> {
    // Text in PostgreSQL has no such character.
    let clean = |text: &str| text.replace('\0', " ");
    let headers: Vec<Value> =
        message.headers.iter().map(|(name, value)| Value::from(vec![clean(name), clean(value)])).collect();
    sqlx::query("select postrider.keep_message($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10)")
        .bind(&shared.consumer)
        .bind(grave.event_id.map(clean))
        .bind(clean(grave.reason))
        .bind(i32::try_from(grave.attempts).unwrap_or(i32::MAX))
        .bind(clean(&refused.to_string()))
        .bind(clean(&message.place))
        .bind(message.key.as_deref().map(clean))
        .bind(message.content_type.as_deref().map(clean))
        .bind(Value::Array(headers).to_string())
        .bind(&message.body)
        .execute(&shared.pool)
        .await?;
    Ok(())
}
