//! When a reader that died is missed.

use std::time::{Duration, Instant};

use postrider::log::{Reader, ReaderOptions};
use postrider_testkit::Proxy;
use sqlx::PgConnection;

use crate::support::{PATIENCE, database, open, reading, run};

const LEASE: Duration = Duration::from_secs(18);
/// Of one statement of the heir: the moment that matters lies between two of them.
const TURN: Duration = Duration::from_millis(100);

async fn holds(reader: &mut Reader, lanes: usize) {
    let waiting = async {
        while reader.lanes().len() != lanes {
            reader.changed().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "it holds {:?}", reader.lanes());
}

/// Waits for the heir's next heartbeat.
async fn heartbeat(connection: &mut PgConnection) {
    let mut last = async || -> String {
        let last = "select max(expires_at)::text from postrider.readers where name = 'heir'";
        sqlx::query_scalar(last).fetch_one(&mut *connection).await.unwrap()
    };
    let before = last().await;
    while last().await == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The lease of the dead ends just after the heir has looked who is alive, and before it asks who may be missed next.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_while_lanes_are_shared_out_is_not_overlooked() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", database.server().port())).await.unwrap();
    let options = |name: &str| ReaderOptions { name: name.to_owned(), lease: LEASE, ..reading("test") };
    let mut victim = open(&database, options("victim")).await;
    let url = database.url_via(proxy.port()).parse().unwrap();
    let mut heir = Reader::open(url, options("heir")).await.unwrap();
    holds(&mut victim, 8).await;
    holds(&mut heir, 8).await;
    drop(victim);
    run(&mut admin, "update postrider.readers set expires_at = clock_timestamp() + interval '1 hour' where name = 'victim'").await;
    proxy.delay(TURN / 2);
    heartbeat(&mut admin).await;
    let beat = Instant::now();
    // It has asked all its questions by then; the second of the next ones is who is alive.
    tokio::time::sleep(TURN * 6).await;
    let ends = LEASE / 3 + TURN * 5 / 2;
    sqlx::query("update postrider.readers set expires_at = clock_timestamp() + make_interval(secs => $1) where name = 'victim'")
        .bind(ends.saturating_sub(beat.elapsed()).as_secs_f64())
        .execute(&mut admin)
        .await
        .unwrap();
    holds(&mut heir, 16).await;
    let late = beat.elapsed().saturating_sub(ends);
    println!("taken over {late:.2?} after the end of the lease");
    // Taking lanes over is a dozen statements. A heartbeat later would be six seconds more.
    assert!(late < LEASE / 3, "{late:?}");
}
