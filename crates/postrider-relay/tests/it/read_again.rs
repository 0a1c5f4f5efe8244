//! What is known of events that are read again through another connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Outcome, Report, Sink, Unavailable, UnavailableKind};
use sqlx::AssertSqlSafe;

use crate::support::{Probe, database, sink, start, until};

/// Takes everything but the very first event, which holds up its lane until it is mended.
#[derive(Clone)]
struct Holey {
    probe: Probe,
    mended: Arc<AtomicBool>,
}

impl Holey {
    fn target(&self) -> Target {
        let holey = self.clone();
        Target::Custom(Custom::new("holey", move || {
            let holey = holey.clone();
            Box::pin(async move { Ok(Box::new(holey) as Box<dyn Sink>) })
        }))
    }
}

impl Sink for Holey {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if self.mended.load(Relaxed) || batch[0].record.r#type != "0" {
                return self.probe.deliver(batch).await;
            }
            let mut report = self.probe.deliver(&batch[1..]).await;
            report.outcomes.insert(0, Outcome::NotSent);
            let why = Unavailable::new(UnavailableKind::Connection, "not the first one");
            report.unavailable = Some(Unavailable { retry_after: Some(Duration::from_secs(2)), ..why });
            report
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

/// Nothing can be settled behind the first event, so nothing fails when the connection goes: that they were delivered has to be known
/// when they are read again, not a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_delivered_behind_a_gap_is_not_sent_again_after_a_lost_connection() {
    const EVENTS: usize = 20;
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    // One lane, many keys.
    let key = "select array_agg(k order by k) from (select k::text from generate_series(1, 1000) k
        where hashtextextended(k::text, 0) & 15 = 0 limit 20) k";
    let keys: Vec<String> = sqlx::query_scalar(key).fetch_one(&mut admin).await.unwrap();
    sqlx::query("select postrider.emit((n - 1)::text, '{}', key => k) from unnest($1::text[]) with ordinality as k (k, n)")
        .bind(&keys)
        .execute(&mut admin)
        .await
        .unwrap();
    let holey = Holey { probe: Probe::new(), mended: Arc::default() };
    let relay = start(&database, vec![sink("probe", holey.target())]);
    holey.probe.wait_for(EVENTS - 1).await;
    holey.mended.store(true, Relaxed);
    let terminate = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'postrider'";
    sqlx::raw_sql(AssertSqlSafe(terminate)).execute(&mut admin).await.unwrap();
    holey.probe.wait_for(EVENTS).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    relay.stop().await;
    assert_eq!(holey.probe.count(), EVENTS, "each once");
}
