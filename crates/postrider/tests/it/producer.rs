//! The Rust producer, with both drivers, against a real server.

mod assertions;
mod context;
mod pgbouncer;
mod refusals;
mod with_events;

use anyhow::Result;
use postrider::{Context, EmitError, Event, Expected, Transaction, assert_emitted, emit, emit_many, emitted};
use postrider_testkit::Database;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::support;

/// Its fields are not in alphabetical order: a round trip through a map would show.
#[derive(Serialize)]
struct OrderPaid {
    order: u64,
    cents: f64,
    by: &'static str,
}

const PAID: OrderPaid = OrderPaid { order: 7, cents: 1250.0, by: "Zoë" };
const PAID_BYTES: &str = r#"{"order":7,"cents":1250.0,"by":"Zoë"}"#;

fn event(r#type: &str, key: i64) -> Event {
    let event = Event::new(r#type, &json!({"order": key}));
    event.expect("a number is JSON").key(key)
}

async fn client(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// An event as the log has it.
struct Row {
    id: Uuid,
    r#type: String,
    payload: String,
    headers: Option<String>,
}

/// What is committed, in the order of writing.
async fn committed(database: &Database) -> Result<Vec<Row>> {
    let sql = "select id, type, payload::text, headers::text from postrider.events order by seq";
    let mut connection = database.connect().await?;
    let rows = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    let row = |(id, r#type, payload, headers)| Row { id, r#type, payload, headers };
    Ok(rows.into_iter().map(row).collect())
}

async fn committed_types(database: &Database) -> Result<Vec<String>> {
    let rows = committed(database).await?;
    Ok(rows.into_iter().map(|row| row.r#type).collect())
}

/// Everything a producer does, in a transaction of any driver.
async fn everything<T: Transaction>(tx: &mut T) -> Result<(), EmitError> {
    let paid = Event::new("order.paid", &PAID)?.key(7);
    let first = emit(tx, &paid.tenant("acme").entity("order")).await?;
    let context = Context::new().set("initiator", "user-7").set("attempt", 1);
    context.apply(tx).await?;
    let packed = event("order.packed", 7).header("attempt", 2);
    let ids = emit_many(tx, &[packed, event("order.sent", 7)]).await?;
    assert!(emit_many(tx, &[]).await?.is_empty());

    let events = emitted(tx).await?;
    let read: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    assert_eq!(read, [first, ids[0], ids[1]]);
    assert_eq!(events[0].payload.get(), PAID_BYTES);
    let headers = json!({"initiator": "user-7", "attempt": 2});
    assert_eq!(Some(&events[1].headers), headers.as_object());
    let paid = Expected::new("order.paid").key(7).tenant("acme").entity("order");
    assert_eq!(assert_emitted(tx, paid.payload(&PAID)).await.id, first);
    let sent = Expected::new("order.sent").header("initiator", "user-7").header("attempt", 1);
    assert_eq!(assert_emitted(tx, sent).await.id, ids[1]);
    Ok(())
}

const EVERYTHING: [&str; 3] = ["order.paid", "order.packed", "order.sent"];

#[tokio::test]
async fn sqlx_events_live_and_die_with_their_transaction() -> Result<()> {
    let database = support::database().await;
    let pool = database.pool(1).await?;
    let mut tx = pool.begin().await?;
    everything(&mut tx).await?;
    tx.rollback().await?;
    assert!(committed(&database).await?.is_empty());

    let mut tx = pool.begin().await?;
    everything(&mut tx).await?;
    assert!(committed(&database).await?.is_empty());
    tx.commit().await?;
    assert_eq!(committed_types(&database).await?, EVERYTHING);

    // A connection with nobody's transaction: committed alone and at once.
    emit(&mut *pool.acquire().await?, &event("alone", 1)).await?;
    assert_eq!(committed_types(&database).await?[3], "alone");
    Ok(())
}

#[tokio::test]
async fn tokio_postgres_events_live_and_die_with_their_transaction() -> Result<()> {
    let database = support::database().await;
    let mut client = client(&database.url()).await?;
    let mut tx = client.transaction().await?;
    everything(&mut tx).await?;
    tx.rollback().await?;
    assert!(committed(&database).await?.is_empty());

    let mut tx = client.transaction().await?;
    everything(&mut tx).await?;
    assert!(committed(&database).await?.is_empty());
    tx.commit().await?;
    assert_eq!(committed_types(&database).await?, EVERYTHING);
    Ok(())
}

#[tokio::test]
async fn a_role_that_may_only_emit_is_enough() -> Result<()> {
    let database = support::database().await;
    let mut client = client(&database.url()).await?;
    let mut tx = client.transaction().await?;
    tx.batch_execute("set local role postrider_emit").await?;
    let context = Context::new().set("initiator", "user-8");
    context.scope(&mut tx, async |tx| everything(tx).await).await?;
    Ok(())
}

#[tokio::test]
async fn payloads_are_written_byte_for_byte() -> Result<()> {
    let database = support::database().await;
    let pool = database.pool(1).await?;
    let raw = "{\"z\": 1,  \"a\":2.50, \"a\":1e2,\t\"s\":\"\\u00e9é\\/\"}";
    let events = [
        Event::new("typed", &PAID)?,
        Event::new("raw", &RawValue::from_string(raw.to_owned())?)?,
        Event::new("nothing", &())?,
    ];
    let mut tx = pool.begin().await?;
    for event in &events {
        emit(&mut tx, event).await?;
    }
    emit_many(&mut tx, &events).await?;
    let read: Vec<String> =
        emitted(&mut tx).await?.iter().map(|event| event.payload.get().to_owned()).collect();
    tx.commit().await?;
    let rows = committed(&database).await?;
    let payloads: Vec<String> = rows.into_iter().map(|row| row.payload).collect();
    assert_eq!(payloads, [PAID_BYTES, raw, "null", PAID_BYTES, raw, "null"]);
    assert_eq!(read, payloads);
    Ok(())
}

#[tokio::test]
async fn emit_many_keeps_the_order_of_the_slice() -> Result<()> {
    let database = support::database().await;
    let pool = database.pool(1).await?;
    let types: Vec<String> = (0..500).map(|n| format!("step.{n}")).collect();
    let events: Vec<Event> = types.iter().zip(0..).map(|(r#type, n)| event(r#type, n % 3)).collect();
    let mut tx = pool.begin().await?;
    let ids = emit_many(&mut tx, &events).await?;
    tx.commit().await?;
    let rows = committed(&database).await?;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), ids);
    assert_eq!(rows.into_iter().map(|row| row.r#type).collect::<Vec<_>>(), types);
    Ok(())
}
