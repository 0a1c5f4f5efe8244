//! Installing and installing again.

use postrider::log::{Error, Reader};
use postrider::schema::{self, Install, Installed};
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version, postgres};
use tokio::task::JoinSet;

use super::Complaint;
use crate::support::{database, database_of, emit, open, options, read_types, reading, run};

async fn empty() -> Database {
    postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap()
}

/// Everything of ours in the catalog, so that two states can be compared.
async fn catalog(database: &Database) -> Vec<String> {
    sqlx::query_scalar(
        "select format('%s %s %s %s', c.relkind, c.relname, c.relacl, pg_get_viewdef(c.oid)) from pg_class c where c.relnamespace = 'postrider'::regnamespace
         union all
         select format('%s %s', pg_get_functiondef(p.oid), p.proacl) from pg_proc p where p.pronamespace = 'postrider'::regnamespace
         order by 1",
    )
    .fetch_all(&mut database.connect().await.unwrap())
    .await
    .unwrap()
}

#[tokio::test]
async fn twice_is_as_good_as_once() {
    let database = empty().await;
    let mut connection = database.connect().await.unwrap();
    let first = schema::install(&mut connection, &Install::default()).await.unwrap();
    let granted = ["consume", "emit", "reader", "relay"].map(|role| format!("postrider_{role}")).to_vec();
    assert_eq!(first, Installed { from: 0, to: schema::NEWEST, lanes: 16, granted });
    let once = catalog(&database).await;
    emit(&mut connection, "kept", "k").await;
    let second = schema::install(&mut connection, &Install::default()).await.unwrap();
    assert_eq!((second.from, second.granted), (schema::NEWEST, vec![]));
    assert_eq!(catalog(&database).await, once);
    // Also every statement by itself, as somebody does who runs the printed script.
    sqlx::raw_sql(sqlx::AssertSqlSafe(schema::script(&Install::default())))
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(catalog(&database).await, once);
    assert_eq!(super::count_events(&mut connection).await, 1);
}

#[tokio::test]
async fn works_on_every_version() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        emit(&mut connection, "hello", "k").await;
        let mut reader = open(&database, reading("test")).await;
        assert_eq!(read_types(&mut reader, 1).await, ["hello"], "{version}");
        reader.close().await.unwrap();
    }
}

#[tokio::test]
async fn twenty_installers_at_once() {
    let database = empty().await;
    let mut installers = JoinSet::new();
    for _ in 0..20 {
        let mut connection = database.connect().await.unwrap();
        installers.spawn(async move { schema::install(&mut connection, &Install::default()).await });
    }
    let results = installers.join_all().await;
    let fresh = results.iter().filter(|result| result.as_ref().unwrap().from == 0).count();
    assert_eq!(fresh, 1, "{results:?}");
}

/// Roles belong to the cluster: installers in different databases meet there, and no lock of one database helps.
#[tokio::test]
async fn twenty_installers_in_four_databases_without_roles() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let mut databases = Vec::new();
    let mut installers = JoinSet::new();
    for _ in 0..4 {
        let database = server.database(&Template::empty()).await.unwrap();
        for _ in 0..5 {
            let mut connection = database.connect().await.unwrap();
            installers.spawn(async move { schema::install(&mut connection, &Install::default()).await });
        }
        databases.push(database);
    }
    for result in installers.join_all().await {
        result.unwrap();
    }
    for database in &databases {
        emit(&mut database.connect().await.unwrap(), "hello", "k").await;
    }
}

#[tokio::test]
async fn the_number_of_lanes_is_fixed() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let install = |lanes| Install { lanes: Some(lanes), ..Install::default() };
    let error = schema::install(&mut connection, &install(32)).await.unwrap_err();
    assert!(matches!(error, Error::Lanes { found: 16, wanted: 32 }), "{error}");
    assert_eq!(schema::install(&mut connection, &install(16)).await.unwrap().lanes, 16);
}

#[tokio::test]
async fn impossible_lanes_are_refused_and_leave_nothing() {
    for lanes in [3, 0, 2048, -16] {
        let database = empty().await;
        let mut connection = database.connect().await.unwrap();
        let install = Install { lanes: Some(lanes), ..Install::default() };
        let error = schema::install(&mut connection, &install).await.unwrap_err();
        let Error::Input(error) = &error else { panic!("{error}") };
        let complaint = Complaint::of(error);
        assert_eq!(complaint.code, "22023");
        assert!(complaint.message.contains(&format!("{lanes} lanes")), "{}", complaint.message);
        assert!(complaint.hint.contains("power of two"), "{}", complaint.hint);
        assert_eq!(schema::version(&mut connection).await.unwrap(), None);
        schema::install(&mut connection, &Install::default()).await.unwrap();
    }
}

#[tokio::test]
async fn the_largest_payload_can_be_changed() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let call = "select postrider.emit('large', to_json(repeat('x', 2000)))";
    run(&mut connection, call).await;
    let smaller = Install { max_payload: Some(1000), ..Install::default() };
    schema::install(&mut connection, &smaller).await.unwrap();
    let many = "select postrider.emit_many(json_build_array(json_build_object('type', 'large', 'payload', repeat('x', 2000))))";
    for call in [call, many] {
        let complaint = super::fails(&mut connection, call).await;
        assert_eq!(complaint.code, "54000");
        assert!(complaint.detail.contains("2002 bytes long, 1000 are allowed"), "{}", complaint.detail);
    }
    // An installation that does not speak of it keeps it.
    schema::install(&mut connection, &Install::default()).await.unwrap();
    super::fails(&mut connection, call).await;
    let larger = Install { max_payload: Some(5000), ..Install::default() };
    schema::install(&mut connection, &larger).await.unwrap();
    run(&mut connection, call).await;
    run(&mut connection, many).await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_the_remedy() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create or replace function postrider.schema_version() returns integer language sql immutable as 'select 99'",
    )
    .await;
    let from_install = schema::install(&mut connection, &Install::default()).await.unwrap_err();
    let from_open = Reader::open(options(&database).into(), reading("test")).await.err().expect("opened");
    for error in [from_install, from_open] {
        assert!(matches!(error, Error::SchemaVersion { found: 99, .. }), "{error}");
        assert!(error.to_string().contains("use a newer postrider"), "{error}");
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn a_database_without_the_schema_says_how_to_install_it() {
    let database = empty().await;
    let error = Reader::open(options(&database).into(), reading("test")).await.err().expect("opened");
    assert!(matches!(error, Error::NotInstalled), "{error}");
    assert!(error.to_string().contains("postrider init"), "{error}");
}
