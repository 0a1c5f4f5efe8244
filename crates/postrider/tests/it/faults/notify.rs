//! Trouble with LISTEN and NOTIFY: the reader may become slower, the user's transactions must not fail.

use std::time::{Duration, Instant};

use postrider::log::bell::{Bell, Heard};
use postrider::log::{Hint, ReaderOptions, Silence};
use postrider_testkit::{PostgresServer, Proxy, Settings, Version};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgConnection};

use super::until;
use crate::support::{
    PATIENCE, database, database_on, database_with_prepared_transactions, emit, next, open, read_types,
    reading, run,
};

/// A ticket is out and somebody listens: a reader of this database sleeps, or is about to.
pub(crate) const ASLEEP: &str = "select coalesce(pg_sequence_last_value('postrider.armed') > coalesce(pg_sequence_last_value('postrider.disarmed'), 0), false)
    and exists (select from pg_stat_activity where datname = current_database() and application_name = 'postrider (listening)'
                and state = 'idle' and query ilike 'listen %')";

#[tokio::test]
async fn fault_23_a_lost_listener_delays_nothing_for_long() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // So long that only a notification, or noticing the loss, can be what ended it.
    let idle = (Duration::from_millis(5), Duration::from_mins(4));
    let mut reader = open(&database, ReaderOptions { idle, ..reading("test") }).await;
    for round in 0..3 {
        until(&mut connection, ASLEEP).await;
        run(
            &mut connection,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity
             where datname = current_database() and application_name = 'postrider (listening)'",
        )
        .await;
        let emitted = Instant::now();
        emit(&mut connection, "unheard", "k").await;
        assert_eq!(read_types(&mut reader, 1).await, ["unheard"]);
        assert!(emitted.elapsed() < idle.1 / 4, "round {round}: {:?}", emitted.elapsed());

        until(&mut connection, ASLEEP).await;
        let emitted = Instant::now();
        emit(&mut connection, "heard", "k").await;
        assert_eq!(read_types(&mut reader, 1).await, ["heard"]);
        assert!(emitted.elapsed() < idle.1 / 4, "round {round}: {:?}", emitted.elapsed());
    }
    assert_eq!(reader.silence(), None);
}

/// The same with the moment chosen: the listener is gone, cannot come back, and only then is it rung for.
#[tokio::test]
async fn fault_23_what_is_rung_while_nobody_listens_is_found() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut server = database.server().connect().await.unwrap();
    let mut allow = async |allowed: bool| {
        let statement = format!("alter database {} with allow_connections {allowed}", database.name());
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut server).await.unwrap();
    };
    let idle = (Duration::from_millis(5), Duration::from_mins(4));
    // It has to do with the connections that it has.
    let lease = Duration::from_mins(1);
    let mut reader = open(&database, ReaderOptions { idle, lease, ..reading("test") }).await;
    until(&mut connection, ASLEEP).await;
    allow(false).await;
    run(
        &mut connection,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity
         where datname = current_database() and application_name = 'postrider (listening)'",
    )
    .await;
    let emitted = Instant::now();
    emit(&mut connection, "unheard", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["unheard"]);
    assert!(emitted.elapsed() < idle.1 / 4, "{:?}", emitted.elapsed());
    allow(true).await;
}

/// A server that is slow to let the listener in again must not keep us from knowing that it was gone: whoever stopped waiting in
/// the middle of that would never hear of it.
#[tokio::test]
async fn fault_23_a_lost_listener_is_noticed_before_it_is_replaced() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", database.server().port())).await.unwrap();
    let through: PgConnectOptions = database.url_via(proxy.port()).parse().unwrap();
    // It hears itself within a second, unless the machine stands still for longer.
    let begun = Instant::now();
    let mut bell = loop {
        let bell = Bell::hang(&through, &mut connection, Hint::Auto).await.unwrap();
        if bell.silence().is_none() {
            break bell;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", bell.silence());
    };
    proxy.cut();
    proxy.wait_for_connections(0).await;
    proxy.half_open();
    assert_eq!(bell.wait(Duration::from_secs(20)).await.unwrap(), Heard::Broken);
}

/// Notifications of the user's own, of nearly a page each.
async fn fill_queue(connection: &mut PgConnection, upto: f64) {
    loop {
        let sent =
            sqlx::raw_sql("select pg_notify('own', repeat('x', 7900) || pg_notification_queue_usage())")
                .execute(&mut *connection)
                .await;
        let usage: f64 = sqlx::query_scalar("select pg_notification_queue_usage()")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        if sent.is_err() || usage > upto {
            return;
        }
    }
}

/// Whether one of so many transactions fails that each notify a few bytes, more than a page in all.
async fn some_emit_fails(connection: &mut PgConnection) -> bool {
    for _ in 0..500 {
        if sqlx::raw_sql("select postrider.emit('victim', '{}')").execute(&mut *connection).await.is_err() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn fault_24_a_full_queue_fails_nobody_who_emits() {
    let settings = Settings::for_tests().set("max_notify_queue_pages", 64);
    let server = PostgresServer::private(Version::V17, settings).await.unwrap();
    let database = database_on(&server).await;
    let mut connection = database.connect().await.unwrap();
    let mut forgotten = database.connect().await.unwrap();
    run(&mut forgotten, "listen own").await;
    run(&mut forgotten, "begin; select 1").await;
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(reader.silence(), None);
    emit(&mut connection, "first", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["first"]);

    fill_queue(&mut connection, 1.0).await;
    let one_more = format!("notify own, '{}'", "x".repeat(7900));
    let refused = sqlx::raw_sql(AssertSqlSafe(one_more)).execute(&mut connection).await;
    assert!(refused.unwrap_err().to_string().contains("NOTIFY queue"), "the queue is full");
    let mut types = Vec::new();
    for number in 0..20 {
        types.push(format!("while full {number}"));
        emit(&mut connection, &types[number], "k").await;
    }
    assert_eq!(read_types(&mut reader, 20).await, types);
    // No ticket is taken any more, and the last one runs out.
    until(
        &mut connection,
        "select coalesce(pg_sequence_last_value('postrider.armed_until'), 0) < date_part('epoch', clock_timestamp())",
    )
    .await;
    reader.close().await.unwrap();
    // A reader can start, too.
    let mut reader = open(&database, reading("test")).await;
    emit(&mut connection, "still full", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["still full"]);

    // Even with a ticket out, taken by a reader that saw the queue half empty, nobody fails; without the rule somebody does.
    run(
        &mut connection,
        "select nextval('postrider.armed'), setval('postrider.armed_until', (date_part('epoch', clock_timestamp()) + 600)::bigint)",
    )
    .await;
    assert!(!some_emit_fails(&mut connection).await);
    let rule = "and pg_notification_queue_usage() < 0.75";
    let bell: String = sqlx::query_scalar("select pg_get_functiondef('postrider.ring_bell()'::regprocedure)")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(bell.contains(rule));
    sqlx::raw_sql(AssertSqlSafe(bell.replace(rule, ""))).execute(&mut connection).await.unwrap();
    assert!(some_emit_fails(&mut connection).await);
    sqlx::raw_sql(AssertSqlSafe(bell)).execute(&mut connection).await.unwrap();

    let victims: i64 = sqlx::query_scalar("select count(*) from postrider.events where type = 'victim'")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    read_types(&mut reader, usize::try_from(victims).unwrap()).await;
    // The forgotten session ends, the queue empties, and the reader sleeps again.
    drop(forgotten);
    run(&mut connection, "select setval('postrider.disarmed', pg_sequence_last_value('postrider.armed'))")
        .await;
    until(&mut connection, ASLEEP).await;
    drop(reader);
}

#[tokio::test]
async fn fault_25_a_user_can_prepare_transactions() {
    let database = database_with_prepared_transactions(Version::default()).await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(reader.silence(), Some(Silence::PreparedTransactions));
    // Names of prepared transactions are the cluster's.
    let name = database.name();
    let prepare = format!("begin; select postrider.emit('prepared', '{{}}'); prepare transaction '{name}'");
    sqlx::raw_sql(AssertSqlSafe(prepare.clone())).execute(&mut connection).await.unwrap();
    emit(&mut connection, "meanwhile", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["meanwhile"]);
    sqlx::raw_sql(AssertSqlSafe(format!("commit prepared '{name}'"))).execute(&mut connection).await.unwrap();
    assert_eq!(read_types(&mut reader, 1).await, ["prepared"]);
    reader.close().await.unwrap();

    // Why nobody is asked to notify here: somebody who sleeps would make the user's PREPARE fail.
    let mut forced = open(&database, ReaderOptions { hint: Hint::Force, ..reading("test") }).await;
    assert_eq!(forced.silence(), None);
    until(&mut connection, ASLEEP).await;
    let error = sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("cannot PREPARE a transaction that has executed"), "{error}");
    run(&mut connection, "rollback").await;
    emit(&mut connection, "last", "k").await;
    assert_eq!(next(&mut forced).await.len(), 1);
}
