//! The server crashes and comes back.

use std::collections::HashSet;
use std::time::Duration;

use postrider_relay::SinkSettings;
use postrider_testkit::{Database, PostgresServer, Settings, Version};
use uuid::Uuid;

use super::load::Load;
use super::{all_delivered, rounds, runs};
use crate::support::{Probe, database_on, sink, start};

#[tokio::test(flavor = "multi_thread")]
async fn fault_8_a_crash_of_the_server_loses_and_invents_nothing() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    let load = Load::start(&database.url(), 3);
    for round in 0..rounds(4, 50) {
        load.more(200).await;
        if round % 2 == 0 {
            server.stop_immediate().await.unwrap();
        } else {
            server.crash().await.unwrap();
        }
        server.start().await.unwrap();
    }
    load.more(200).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "the relay knows what it has delivered: {report}");
    runs(&relay).await;
    relay.stop().await;
}

async fn count(database: &Database) -> usize {
    let mut connection = database.connect().await.unwrap();
    let events: i64 =
        sqlx::query_scalar("select count(*) from postrider.events").fetch_one(&mut connection).await.unwrap();
    usize::try_from(events).unwrap()
}

/// Commits that are not on disk when they return. What a crash takes back must not have been delivered.
#[tokio::test(flavor = "multi_thread")]
async fn fault_10_nothing_is_delivered_that_a_crash_takes_back() {
    let settings = Settings::for_tests().set("wal_writer_delay", "10s").set("wal_writer_flush_after", 0);
    let server = PostgresServer::private(Version::default(), settings).await.unwrap();
    let database = database_on(&server).await;
    let probe = Probe::new();
    // Small batches: often something was just read.
    let settings = SinkSettings { max_batch: 5, ..sink("probe", probe.target()) };
    let relay = start(&database, vec![settings]);
    let (mut taken_back, mut round) = (0, 0);
    // What is taken back is what was written in the last moment: a round without any proves nothing.
    while round < rounds(4, 50) || taken_back == 0 {
        round += 1;
        assert!(round < 60, "no commit was ever taken back");
        let before = count(&database).await;
        let load = Load::with(&database.url(), 3, "set synchronous_commit = off");
        load.more(300).await;
        server.crash().await.unwrap();
        let ledger = load.stop().await;
        // What the relay has read is delivered by now or never.
        let count = probe.count();
        server.start().await.unwrap();
        let mut connection = database.connect().await.unwrap();
        let rows: Vec<Uuid> =
            sqlx::query_scalar("select id from postrider.events").fetch_all(&mut connection).await.unwrap();
        let there: HashSet<String> = rows.iter().map(Uuid::to_string).collect();
        let delivered = probe.taken();
        let phantoms: Vec<_> = delivered[..count].iter().filter(|taken| !there.contains(&taken.id)).collect();
        assert!(phantoms.is_empty(), "{} delivered and taken back: {phantoms:?}", phantoms.len());
        // Every event that is there comes, and each once.
        tokio::time::timeout(Duration::from_mins(2), async {
            while probe.count() < there.len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        // Of those that were in doubt some may be there: it is at least so many.
        taken_back += (before + ledger.committed()).saturating_sub(there.len());
        runs(&relay).await;
    }
    let ids: HashSet<String> = probe.taken().into_iter().map(|taken| taken.id).collect();
    assert_eq!(ids.len(), probe.count(), "none twice");
    println!("{taken_back} events were taken back in {round} crashes");
    relay.stop().await;
}
