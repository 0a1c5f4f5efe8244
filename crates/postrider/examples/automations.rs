//! The automations of a tracker: each event of a work item sets off those that wait for it, once, as jobs.
//! `automations amqp://127.0.0.1 events`, with `DATABASE_URL` set.
//!
//! The queue `automations` is this consumer's own, bound to the exchange that everything is published to; the publisher does not know of it.
//! What a change may set off is in the table `automations`, what it has set off in `automation_runs`, the tracking table: an event that
//! comes again finds its row there, and so does one that is replayed after the inbox has forgotten it.

use postrider::consume::{BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event};
use postrider::consumers::rabbitmq::RabbitMq;
use serde_json::value::RawValue;
use sqlx::PgPool;

/// What the service keeps for itself.
pub const TABLES: &str = "
    create table if not exists automations (
        id      bigint generated always as identity primary key,
        trigger text not null);
    create table if not exists automation_runs (
        event_id      text not null,
        automation_id bigint not null references automations,
        primary key (event_id, automation_id))";

/// A job for each automation that waits for this, and that this event has not set off before.
const DISPATCH: &str = "
    with runs as (
        insert into automation_runs (event_id, automation_id)
        select $1, id from automations where trigger = $2
        on conflict do nothing
        returning automation_id)
    select count(postrider.enqueue('automation.run', json_build_object('automation', automation_id, 'change', $3::json), key => $4))
    from runs";

async fn dispatch(tx: &mut Tx, event: Event<Box<RawValue>>) -> Result<Outcome, BoxError> {
    let jobs: i64 = sqlx::query_scalar(DISPATCH)
        .bind(&event.id)
        .bind(&event.r#type)
        .bind(event.payload.get())
        .bind(&event.key)
        .fetch_one(&mut **tx)
        .await?;
    tracing::info!(jobs, id = event.id, "dispatched");
    Ok(Outcome::Done)
}

/// Work items alone, and nothing that an automation has done itself: it would set off itself for ever.
fn is_ours(event: &Event) -> bool {
    let by_automation =
        event.headers.get("initiator_type").is_some_and(|initiator| initiator == "AUTOMATION");
    event.r#type.starts_with("workitem.") && !by_automation
}

/// Until `stop` ends.
pub async fn run(
    pool: PgPool,
    url: &str,
    exchange: &str,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let events = RabbitMq::new(url, exchange);
    Consumer::new(pool, "automations", events).filter(is_ours).run(stop, dispatch).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, exchange] = arguments.as_slice() else { return Err("usage: automations URL EXCHANGE".into()) };
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    run(pool, url, exchange, async { drop(tokio::signal::ctrl_c().await) }).await
}
