//! Somebody at the console, as quick as they are careless.

use std::sync::Arc;
use std::time::Duration;

use postrider::log::parking::admin::{self, Act, Selection};
use rand::RngExt as _;
use sqlx::PgConnection;
use uuid::Uuid;

use super::Storm;

/// Retries and discards at random until the storm is calm.
pub async fn work(storm: Arc<Storm>) {
    let mut rng = storm.seed.for_task(3).rng();
    let mut connection = storm.database.connect().await.unwrap();
    while !storm.is_calm() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
        let some = any(&mut connection, rng.random_range(1..5)).await;
        if some.is_empty() {
            continue;
        }
        let selection = Selection {
            ids: some.iter().map(Uuid::to_string).collect(),
            include_parked: true,
            ..Selection::default()
        };
        let act = if rng.random_bool(0.6) { Act::Discard } else { Act::Retry };
        if act == Act::Discard {
            // Before it is done. One that is delivered just now is allowed to be, and none is that nobody knows of.
            storm.discarded.lock().unwrap().extend(some);
        }
        apply(&mut connection, &selection, act).await;
    }
}

/// Whatever is dead is tried again.
pub async fn retry_the_dead(connection: &mut PgConnection) {
    apply(connection, &Selection::default(), Act::Retry).await;
}

/// Parked events, whatever their state.
async fn any(connection: &mut PgConnection, count: i64) -> Vec<Uuid> {
    sqlx::query_scalar("select id from postrider.parked order by md5(id::text || clock_timestamp()) limit $1")
        .bind(count)
        .fetch_all(connection)
        .await
        .unwrap()
}

async fn apply(connection: &mut PgConnection, selection: &Selection, act: Act) {
    let matched = admin::count(connection, selection).await.unwrap();
    admin::apply(connection, selection, &matched, act, 100, |_| ()).await.unwrap();
}
