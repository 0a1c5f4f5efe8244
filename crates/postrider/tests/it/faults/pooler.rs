//! PgBouncer in transaction mode.

use std::time::Instant;

use postrider::log::bell::Bell;
use postrider::log::{Error, Hint, Reader, Silence};
use postrider::{Event, emit};
use postrider_testkit::PgBouncer;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::{PATIENCE, database, options, reading, run};

/// Reading needs settings that stay in the session, and in transaction mode they do not; worse, they stay in somebody else's. (Set
/// by SET, as it was once: the next application that came through the pool ran with `enable_seqscan = off` and a timeout.)
#[tokio::test]
async fn fault_26_a_reader_behind_a_pooler_is_refused_and_leaves_nothing_behind() {
    for pool_size in [1, 5] {
        let database = database().await;
        let pooler = PgBouncer::start(database.server(), pool_size).await.unwrap();
        let through: PgConnectOptions = pooler.url(&database).parse().unwrap();
        let error = Reader::open(through.into(), reading("test")).await.err().expect("opened");
        assert!(matches!(error, Error::Pooler(_)), "{error}");
        assert!(error.to_string().contains("connect to the server itself"), "{error}");
        assert!(!error.is_transient());
        let mut application = PgConnection::connect(&pooler.url(&database)).await.unwrap();
        for _ in 0..10 {
            let row = application
                .fetch_one("select current_setting('enable_seqscan'), current_setting('statement_timeout')")
                .await
                .unwrap();
            assert_eq!((row.get::<&str, _>(0), row.get::<&str, _>(1)), ("on", "0"));
        }
    }
}

/// A pooler may be told to drop what a client asks for at connect, and then says nothing. Reading would go on with the timeouts, the
/// isolation and the plans of whoever owns the role.
#[tokio::test]
async fn fault_26_settings_that_were_dropped_on_the_way_are_missed() {
    let database = database().await;
    let pooler = PgBouncer::start(database.server(), 5).await.unwrap();
    let mut console = PgConnection::connect(&pooler.console_url()).await.unwrap();
    run(&mut console, "set ignore_startup_parameters = 'extra_float_digits,options'").await;
    // Everything else works.
    run(&mut console, "set pool_mode = session").await;
    let through: PgConnectOptions = pooler.url(&database).parse().unwrap();
    let error = Reader::open(through.into(), reading("test")).await.err().expect("opened");
    assert!(matches!(error, Error::Setting { name: "statement_timeout", .. }), "{error}");
}

/// Whatever is in between and lets settings pass: a deaf LISTEN is found out, and polling serves alone.
#[tokio::test]
async fn fault_26_a_deaf_listener_is_found_out() {
    let database = database().await;
    let pooler = PgBouncer::start(database.server(), 2).await.unwrap();
    let through: PgConnectOptions = pooler.url(&database).parse().unwrap();
    let mut direct = database.connect().await.unwrap();
    let bell = Bell::hang(&through, &mut direct, Hint::Auto).await.unwrap();
    assert_eq!(bell.silence(), Some(Silence::Deaf));
    // It hears itself within a second, unless the machine stands still for longer.
    let begun = Instant::now();
    while Bell::hang(&options(&database), &mut direct, Hint::Auto).await.unwrap().silence().is_some() {
        assert!(begun.elapsed() < PATIENCE, "it never hears itself");
    }
}

#[tokio::test]
async fn fault_28_settings_leaked_by_another_client_do_not_break_emit() {
    let database = database().await;
    let pooler = PgBouncer::start(database.server(), 1).await.unwrap();
    let mut leaking = PgConnection::connect(&pooler.url(&database)).await.unwrap();
    // One server connection for both, and no reset in between.
    run(
        &mut leaking,
        "set search_path = nowhere; set statement_timeout = '20s'; set lock_timeout = '1ms';
         set default_transaction_isolation = 'serializable'; set datestyle = 'SQL, DMY'; set timezone = 'Asia/Kathmandu';
         set standard_conforming_strings = off; set transform_null_equals = on; set extra_float_digits = 0; set bytea_output = 'escape';
         set intervalstyle = 'sql_standard'; set quote_all_identifiers = on; set plpgsql.variable_conflict = 'error';
         set default_tablespace = ''; set array_nulls = off; set jit = on; set session_replication_role = replica;
         set enable_indexscan = off; set role none; set postrider.context = ''",
    )
    .await;
    let through: PgConnectOptions = pooler.url(&database).parse().unwrap();
    let mut client = PgConnection::connect_with(&through.statement_cache_capacity(0)).await.unwrap();
    let path: String = client.fetch_one("show search_path").await.unwrap().get(0);
    assert_eq!(path, "nowhere", "the leak is real");
    run(
        &mut client,
        "begin; select postrider.set_context('initiator', 'u7'); select postrider.emit('a', '{}', key => 'k'); commit",
    )
    .await;
    run(&mut client, "select postrider.emit('b', '{\"n\": 1}'::jsonb)").await;
    run(&mut client, "select postrider.emit_many('[{\"type\": \"c\", \"payload\": 1, \"key\": \"k\"}]')")
        .await;
    let mut transaction = client.begin().await.unwrap();
    emit(&mut transaction, &Event::new("d", &1).unwrap().key("k")).await.unwrap();
    transaction.commit().await.unwrap();

    let rows = sqlx::query("select type, headers::text, lane, key from postrider.events order by seq")
        .fetch_all(&mut database.connect().await.unwrap())
        .await
        .unwrap();
    let types: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(types, ["a", "b", "c", "d"]);
    // A context ends with its transaction: the next one on the same server connection has none.
    let headers: Vec<Option<&str>> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!(headers, [Some("{\"initiator\": \"u7\"}"), None, None, None]);
    let lanes: Vec<i16> = [0, 2, 3].iter().map(|row: &usize| rows[*row].get(2)).collect();
    assert_eq!(lanes[0], lanes[1]);
    assert_eq!(lanes[0], lanes[2]);
}
