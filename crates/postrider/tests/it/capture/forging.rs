//! What one owner of captured tables can do to the events of another: nothing.

use postrider::capture::{self, Table};
use postrider::outbox::{self, Outbox, Preset};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::owners::{Stage, drop_role};
use super::{execute, types};

/// Another role, with a schema of its own.
async fn other(database: &Database, admin: &mut PgConnection) -> (String, PgConnection) {
    let other = format!("{}_other", database.name());
    execute(admin, &format!("create role \"{other}\" login; create schema other authorization \"{other}\""))
        .await;
    let connection = PgConnection::connect(&database.url_as(&other)).await.unwrap();
    (other, connection)
}

/// Fails for want of a right.
async fn denied(connection: &mut PgConnection, statement: &str) {
    let answer = sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await;
    let error = answer.map(|_| ()).expect_err(statement);
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
}

async fn number(connection: &mut PgConnection, query: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(connection).await.unwrap()
}

/// The function that a table records by.
async fn recorder(admin: &mut PgConnection, table: &str, purpose: &str) -> String {
    sqlx::query_scalar("select postrider.recorder($1, $2)")
        .bind(table)
        .bind(purpose)
        .fetch_one(admin)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_owner_records_events_of_his_own_tables_only() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let (other_role, mut other) = other(&database, &mut admin).await;
        execute(&mut owner, "create table app.orders (id int primary key)").await;
        execute(&mut other, "create table other.bills (id int primary key, secret text)").await;
        let tables = [Table::new("app.orders", "order"), Table::new("other.bills", "bill")];
        capture::apply(&mut admin, &tables, false).await.unwrap();
        assert!(capture::plan(&mut admin, &tables).await.unwrap().is_done(), "{version}");
        let bills = number(&mut admin, "select 'other.bills'::regclass::oid::bigint").await;
        let orders = number(&mut admin, "select 'app.orders'::regclass::oid::bigint").await;

        let forged = format!(
            "select postrider.record_failure({bills}::oid, 'INSERT', null, '{{\"id\": 666}}', '{{}}', 'XX000', 'hm', null)"
        );
        denied(&mut owner, &forged).await;
        // Of a table of his own that is to be taken for the other when it is gone.
        let forged = format!(
            "insert into postrider.capture_failures (relation, operation, sqlstate, message, relid) values ('other.bills', 'TRUNCATE', 'XX000', 'hm', {orders})"
        );
        denied(&mut owner, &forged).await;
        denied(&mut owner, &format!("select postrider.keep_departed({bills}::oid, 'id', '1', '{{}}')")).await;
        let (own, strange) = (
            recorder(&mut admin, "app.orders", "record").await,
            recorder(&mut admin, "other.bills", "record").await,
        );
        denied(&mut owner, &format!("select {strange}('bill.deleted', '1', null, '{{}}', null)")).await;
        denied(&mut owner, &format!("select {own}('bill.deleted', '1', null, '{{}}', null)")).await;
        execute(
            &mut owner,
            &format!(
                "select {own}('order.created', '1', null, '{{}}', null); insert into app.orders values (1)"
            ),
        )
        .await;
        execute(&mut other, "insert into other.bills values (1)").await;
        assert_eq!(types(&mut admin).await, ["order.created", "order.created", "bill.created"], "{version}");
        drop_role(&mut admin, owner, &role).await;
        drop_role(&mut admin, other, &other_role).await;
    }
}

/// Also where he is let to install for himself.
#[tokio::test]
async fn an_owner_sees_and_removes_what_is_kept_of_his_own_tables_only() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let (other_role, mut other) = other(&database, &mut admin).await;
        execute(&mut admin, &format!("select postrider.allow_capture('{role}')")).await;
        execute(&mut owner, "create table app.orders (id int primary key, note text)").await;
        execute(&mut other, "create table other.bills (id int primary key, secret text)").await;
        let order = Table::new("app.orders", "order");
        let bill = Table::new("other.bills", "bill");
        capture::apply(&mut admin, std::slice::from_ref(&bill), false).await.unwrap();
        capture::apply(&mut owner, std::slice::from_ref(&order), false).await.unwrap();
        let bills = number(&mut admin, "select 'other.bills'::regclass::oid::bigint").await;
        execute(
            &mut other,
            "alter table other.bills rename secret to hidden; insert into other.bills values (1, 'x')",
        )
        .await;
        execute(
            &mut owner,
            "alter table app.orders rename note to remark; insert into app.orders values (1, 'x')",
        )
        .await;

        let kept = "select count(*) from postrider.capture_failures";
        assert_eq!(number(&mut owner, kept).await, 1, "{version}");
        execute(&mut owner, "delete from postrider.capture_failures where relation = 'other.bills'").await;
        assert_eq!(number(&mut admin, kept).await, 2, "{version}");
        for forged in [
            format!("select postrider.let_record({bills}::regclass, 'record', '{{\"entity\": \"x\"}}')"),
            "insert into postrider.backfills (relation, condition) values ('other.bills', 'true')".to_owned(),
            "insert into postrider.partitions (parent, partition) values ('other.bills', 'x')".to_owned(),
            "update postrider.capture_failures set relation = 'other.bills'".to_owned(),
            "insert into postrider.capture_failures (relation, operation, sqlstate, message, origin) values ('app.orders', 'TRUNCATE', '', '', 'x')".to_owned(),
        ] {
            denied(&mut owner, &forged).await;
        }
        // His own he records himself, and the other's wait for the other.
        execute(&mut owner, "alter table app.orders rename remark to note").await;
        assert_eq!(capture::recapture(&mut owner, &order).await.unwrap().writes, 1, "{version}");
        assert_eq!(types(&mut admin).await, ["order.created"], "{version}");
        execute(&mut other, "alter table other.bills rename hidden to secret").await;
        assert_eq!(capture::recapture(&mut admin, &bill).await.unwrap().writes, 1, "{version}");
        assert_eq!(types(&mut admin).await, ["bill.created"], "{version}");
        // Of a table that is gone he removes what he has kept.
        execute(
            &mut owner,
            "alter table app.orders rename note to remark; insert into app.orders values (2, 'x'); drop table app.orders;
             delete from postrider.capture_failures where relation = 'app.orders'",
        )
        .await;
        assert_eq!(number(&mut admin, kept).await, 0, "{version}");
        drop_role(&mut admin, owner, &role).await;
        drop_role(&mut admin, other, &other_role).await;
    }
}

#[tokio::test]
async fn an_owner_adopts_rows_of_his_own_outbox_only() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let (other_role, mut other) = other(&database, &mut admin).await;
        let outbox = "(id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
            published_at timestamptz, attempts int not null default 0, last_error text)";
        execute(&mut owner, &format!("create table app.outbox {outbox}")).await;
        execute(&mut other, &format!("create table other.outbox {outbox}")).await;
        let outboxes = ["app.outbox", "other.outbox"].map(|name| Outbox::new(name, Preset::OutboxTopic));
        outbox::apply(&mut admin, &outboxes, false).await.unwrap();
        assert!(outbox::plan(&mut admin, &outboxes).await.unwrap().is_done(), "{version}");
        for (connection, schema) in [(&mut owner, "app"), (&mut other, "other")] {
            execute(
                connection,
                &format!("insert into {schema}.outbox (topic, payload) values ('{schema}', '{{}}')"),
            )
            .await;
        }
        assert_eq!(types(&mut admin).await, ["app", "other"], "{version}");

        assert_eq!(number(&mut admin, "select count(*) from postrider.adopted").await, 2, "{version}");
        assert_eq!(number(&mut owner, "select count(*) from postrider.adopted").await, 1, "{version}");
        let strange = recorder(&mut admin, "other.outbox", "adopt").await;
        let forged = format!("select {strange}('1', 'x', null, null, null, '{{}}', null, now(), true, null)");
        denied(&mut owner, &forged).await;
        denied(&mut owner, &format!("select {strange}('{{}}'::postrider.adoptable[], true)")).await;
        let forged = "insert into postrider.misfits (outbox, rows, source_id, reason, found_by) values ('other.outbox', 1, '1', 'x', 'x')";
        denied(&mut owner, forged).await;
        drop_role(&mut admin, owner, &role).await;
        drop_role(&mut admin, other, &other_role).await;
    }
}

/// What is installed again makes the functions again that tables record by, and takes back what owners once had.
#[tokio::test]
async fn an_owner_who_had_more_rights_has_those_of_his_own_tables_after_an_upgrade() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(&mut owner, "create table app.orders (id int primary key)").await;
    let table = Table::new("app.orders", "order");
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    execute(
        &mut admin,
        &format!("grant all on postrider.capture_failures, postrider.backfills to \"{role}\""),
    )
    .await;
    let again = Install { max_payload: Some(1_000_000), ..Install::default() };
    schema::install(&mut admin, &again).await.unwrap();
    assert!(capture::plan(&mut admin, &[table]).await.unwrap().is_done());
    denied(&mut owner, "delete from postrider.capture_failures").await;
    denied(&mut owner, "select from postrider.backfills").await;
    execute(
        &mut owner,
        "insert into app.orders values (1); alter table app.orders rename id to number; insert into app.orders values (2)",
    )
    .await;
    assert_eq!(types(&mut admin).await, ["order.created"]);
    assert_eq!(number(&mut admin, "select count(*) from postrider.capture_failures").await, 1);
    drop_role(&mut admin, owner, &role).await;
}
