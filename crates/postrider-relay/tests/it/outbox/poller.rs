//! The pollers that the tables were made for, in a few lines: what they send for a row, and how they claim and mark.

use std::collections::BTreeMap;

use postrider::outbox::Preset;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::execute;
use super::mailbox::Letter;

const BATCH: usize = 10;

/// In the order in which the old poller takes them.
async fn rows(connection: &mut PgConnection, preset: Preset, which: &str) -> Vec<Value> {
    let order = match preset {
        Preset::OutboxUuid => "created_at, id",
        Preset::OutboxEvents => "occurred_at, id",
        _ => "id",
    };
    let statement = format!(
        "select to_jsonb(o)::text from (select o.*, {} as second from outbox o where {which} order by {order}) o",
        if preset == Preset::Plane { "floor(extract(epoch from created_at))::bigint" } else { "0" }
    );
    let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(statement)).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What the old poller sends for a row.
fn letter(preset: Preset, row: &Value) -> Letter {
    let header = |name: &str| BTreeMap::from([(name.to_owned(), text(&row["id"]))]);
    let none = BTreeMap::new();
    let (destination, key, body, headers) = match preset {
        Preset::Plane => {
            let body = json!({
                "timestamp": row["second"], "publisher": "event-stream", "version": "1.0", "source": "poller",
                "event_id": row["event_id"], "event_type": row["event_type"], "entity_id": row["entity_id"],
                "payload": row["payload"], "workspace_id": row["workspace_id"], "initiator_type": row["initiator_type"],
            });
            (String::new(), None, body, none)
        }
        Preset::OutboxEvents => (text(&row["event_type"]), None, row["payload"].clone(), none),
        Preset::EventsOutbox => {
            let topic = text(&row["type"]).split('.').next().unwrap().to_owned();
            (topic, Some(text(&row["aggregate_id"])), row["payload"].clone(), header("event_id"))
        }
        Preset::OutboxTopic => {
            (text(&row["topic"]), Some(text(&row["key"])), row["payload"].clone(), header("outbox_id"))
        }
        Preset::OutboxUuid => (text(&row["topic"]), None, row["payload"].clone(), none),
        Preset::Debezium => (
            format!("outbox.event.{}", text(&row["aggregatetype"])),
            Some(text(&row["aggregateid"])),
            row["payload"].clone(),
            header("id"),
        ),
    };
    let id = text(if preset == Preset::Plane { &row["event_id"] } else { &row["id"] });
    let number = row["payload"]["n"].as_i64().unwrap();
    Letter { id, destination, record_key: key.clone(), key, body, headers, number }
}

/// What the old poller would send for every row that is there.
pub async fn letters(connection: &mut PgConnection, preset: Preset) -> Vec<Letter> {
    rows(connection, preset, "true").await.iter().map(|row| letter(preset, row)).collect()
}

/// The same for rows from the forty-first on. Of a table whose rows may be gone by now, as they were inserted.
pub async fn later(connection: &mut PgConnection, preset: Preset) -> Vec<Letter> {
    if preset == Preset::Debezium {
        let row = |n: i64| json!({"id": super::tables::id(n).to_string(), "aggregatetype": "order", "aggregateid": format!("k{}", n % 4), "payload": {"n": n}});
        return (41..=50).map(|n| letter(preset, &row(n))).collect();
    }
    rows(connection, preset, "(payload ->> 'n')::int > 40")
        .await
        .iter()
        .map(|row| letter(preset, row))
        .collect()
}

/// A whole batch, and half of another: sent, and killed before it is marked.
pub async fn run_and_stop(connection: &mut PgConnection, preset: Preset) -> Vec<Letter> {
    let mut sent = batch(connection, preset, BATCH).await;
    sent.extend(batch(connection, preset, BATCH / 2).await);
    sent
}

/// Claims a batch and sends the first few of it; marks it if that was all.
async fn batch(connection: &mut PgConnection, preset: Preset, sends: usize) -> Vec<Letter> {
    let unsent = super::tables::sent(preset).map_or("true".to_owned(), |sent| format!("{sent} is null"));
    let mut transaction = connection.begin().await.unwrap();
    let claim = if preset == Preset::Plane { " and claimed_at is null" } else { "" };
    let rows = rows(&mut transaction, preset, &format!("{unsent}{claim}")).await;
    let claimed = &rows[..BATCH];
    let ids: Vec<String> = claimed.iter().map(|row| format!("'{}'", text(&row["id"]))).collect();
    let ids = ids.join(", ");
    execute(&mut transaction, &format!("select from outbox where id in ({ids}) for update skip locked"))
        .await;
    if preset == Preset::Plane {
        // The claim is a transaction of its own.
        execute(&mut transaction, &format!("update outbox set claimed_at = now() where id in ({ids})")).await;
    }
    let letters = claimed[..sends].iter().map(|row| letter(preset, row)).collect();
    let is_marked = sends == BATCH;
    if is_marked {
        let mark = match super::tables::sent(preset) {
            Some(sent) => format!("update outbox set {sent} = now() where id in ({ids})"),
            None => format!("delete from outbox where id in ({ids})"),
        };
        execute(&mut transaction, &mark).await;
    }
    if is_marked || preset == Preset::Plane {
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    letters
}
