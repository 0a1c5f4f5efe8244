//! The server has no transaction ids left to give.

use std::time::Duration;

use postrider_relay::{SinkSettings, State};
use postrider_testkit::{Database, PostgresServer, Settings, User, Version, run_to_end};

use sqlx::{Connection as _, PgConnection};

use super::load::Load;
use super::{all_delivered, compare, run, runs, says, state, stays};
use crate::support::{Probe, database_on, sink, start, until};

/// So many ids before the end `PostgreSQL` stops giving them out.
const RESERVE: u64 = 3_000_000;
/// So many transactions from now.
const LEFT: u64 = 1_000;

/// Moves the next transaction id close to where the server stops. Something old holds the horizon, or autovacuum would help at once: a slot, because
/// for a prepared transaction the server would write eight gigabytes of subtransactions when it starts.
async fn age(server: &PostgresServer, database: &Database) {
    let mut admin = database.connect().await.unwrap();
    run(&mut admin, "select pg_create_logical_replication_slot('old', 'pgoutput')").await;
    run(&mut admin, "checkpoint").await;
    let oldest: i64 = sqlx::query_scalar("select min(datfrozenxid::text::bigint) from pg_database")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    drop(admin);
    server.stop().await.unwrap();
    let next = oldest.unsigned_abs() + (1 << 31) - 1 - RESERVE - LEFT;
    let data = server.data_dir();
    run_to_end(server.run_as("pg_resetwal").unwrap().args(["-x", &next.to_string(), "-D"]).arg(&data))
        .unwrap();
    // The page of the commit log that the next id is on: a segment has 2^20 ids, two bits each.
    for segment in [next >> 20, (next + LEFT) >> 20] {
        let path = data.join(format!("pg_xact/{segment:04X}"));
        std::fs::write(&path, vec![0; 256 << 10]).unwrap();
        User::for_servers().unwrap().own(&path).unwrap();
    }
    server.start().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_a_server_that_takes_no_commands_gets_a_window_and_no_event_twice() {
    let settings = Settings::for_tests()
        .set("wal_level", "logical")
        .set("log_min_messages", "fatal")
        .set("autovacuum_naptime", "1s");
    let server = PostgresServer::private(Version::V15, settings).await.unwrap();
    let database = database_on(&server).await;
    let probe = Probe::new();
    let settings = SinkSettings { max_in_flight: 100, ..sink("probe", probe.target()) };
    let relay = start(&database, vec![settings]);
    runs(&relay).await;
    age(&server, &database).await;
    let load = Load::start(&database.url(), 2);
    let said = says(&relay, "is not accepting commands").await;
    assert!(said.contains("vacuum that database") || said.contains("VACUUM"), "{said}");
    assert!(matches!(state(&relay), State::Failed { .. }));
    let before = probe.count();
    stays("at most a window more", Duration::from_secs(1), || probe.count() <= before + 100).await;
    assert!(compare(load.ledger(), &probe).duplicated.is_empty());

    // The operator ends what held the horizon, and vacuums.
    let mut admin = database.connect().await.unwrap();
    run(&mut admin, "select pg_drop_replication_slot('old')").await;
    // Of those that take no connections the server itself takes care.
    let names: Vec<String> = sqlx::query_scalar("select datname from pg_database where datallowconn")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    for name in names {
        let mut connection = PgConnection::connect(&server.url(&name)).await.unwrap();
        run(&mut connection, "vacuum freeze").await;
    }
    until(
        &mut admin,
        "select bool_and(age(datfrozenxid) < 1000000000) or pg_current_xact_id_if_assigned() is not null from pg_database
         where datallowconn",
    )
    .await;
    runs(&relay).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
}
