//! What one owner of captured tables can do to the events of another: nothing.

use postrider::capture::{self, Backfill, Parent, Table, Truncate};
use postrider::outbox::{self, Outbox, Preset};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::owners::{Stage, drop_role};
use super::{execute, types};

/// Another role, with a schema of its own.
pub(super) async fn other(database: &Database, admin: &mut PgConnection) -> (String, PgConnection) {
    let other = format!("{}_other", database.name());
    execute(admin, &format!("create role \"{other}\" login; create schema other authorization \"{other}\""))
        .await;
    let connection = PgConnection::connect(&database.url_as(&other)).await.unwrap();
    (other, connection)
}

/// Fails for want of a right.
pub(super) async fn denied(connection: &mut PgConnection, statement: &str) {
    let answer = sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await;
    let error = answer.map(|_| ()).expect_err(statement);
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
}

pub(super) async fn number(connection: &mut PgConnection, query: &str) -> i64 {
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

/// What was kept of a table that is gone is of who has kept it, whoever has a table of its name now.
#[tokio::test]
async fn a_table_under_the_name_of_one_that_is_gone_gets_nothing_of_it() {
    let Stage { database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let (other_role, mut other) = other(&database, &mut admin).await;
    execute(
        &mut admin,
        &format!(
            "select postrider.allow_capture('{role}'), postrider.allow_capture('{other_role}');
             create schema shared; grant usage, create on schema shared to \"{role}\", \"{other_role}\""
        ),
    )
    .await;
    execute(
        &mut other,
        "create table shared.orders (id int primary key);
         select postrider.record_failure('shared.orders'::regclass, 'INSERT', null, '{\"id\": 666}', '{}', '55000', 'x', null);
         insert into postrider.backfills (relation, condition, place, relid) values ('shared.orders', 'true', '{1000}', 'shared.orders'::regclass)",
    )
    .await;
    // Nor a number that a table will get.
    denied(
        &mut other,
        "insert into postrider.backfills (relation, condition, relid) values ('shared.orders', 'id > 0', 4000000000)",
    )
    .await;
    execute(&mut other, "drop table shared.orders").await;
    execute(&mut owner, "create table shared.orders (id int primary key)").await;
    let table = Table::new("shared.orders", "order");
    capture::apply(&mut owner, std::slice::from_ref(&table), false).await.unwrap();
    assert_eq!(capture::recapture(&mut admin, &table).await.unwrap().writes, 0);
    execute(&mut owner, "insert into shared.orders values (1)").await;
    let (backfill, _) = Backfill::open(&mut owner, &table, None).await.unwrap();
    assert_eq!(backfill.page(&mut owner, 10).await.unwrap().emitted, 1);
    assert_eq!(types(&mut admin).await, ["order.created", "order.snapshot"]);
    let kept = "select count(*) from postrider.capture_failures";
    assert_eq!((number(&mut owner, kept).await, number(&mut other, kept).await), (0, 1));
    drop_role(&mut admin, owner, &role).await;
    drop_role(&mut admin, other, &other_role).await;
}

/// A mark by which the triggers of partitions know that their table tells of a TRUNCATE is left by that table's owner alone.
#[tokio::test]
async fn a_truncate_of_anothers_partition_cannot_be_hidden() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let (other_role, mut other) = other(&database, &mut admin).await;
        execute(
            &mut owner,
            "create table app.logs (id int primary key) partition by range (id);
             create table app.logs_1 partition of app.logs for values from (0) to (10); insert into app.logs values (1)",
        )
        .await;
        let table = Table { truncate: Truncate::Refuse, ..Table::new("app.logs", "log") };
        capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
        execute(
            &mut admin,
            &format!(
                "select postrider.allow_capture('{other_role}'); grant usage on schema app to \"{other_role}\";
                 grant truncate on app.logs_1 to \"{other_role}\""
            ),
        )
        .await;
        let hidden = "begin; select postrider.is_truncated_alone('app.logs'::regclass, 'app.logs'::regclass); truncate app.logs_1; commit";
        denied(&mut other, hidden).await;
        execute(&mut other, "rollback").await;
        assert_eq!(number(&mut admin, "select count(*) from app.logs").await, 1, "{version}");

        // Whoever has the right to it is told of as before, whatever his session has set.
        let told = Table::new("app.logs", "log");
        capture::apply(&mut admin, std::slice::from_ref(&told), false).await.unwrap();
        execute(&mut other, "set row_security = off; truncate app.logs_1").await;
        execute(&mut owner, "truncate app.logs").await;
        assert_eq!(types(&mut admin).await, ["log.partition.truncated", "log.truncated"], "{version}");
        drop_role(&mut admin, owner, &role).await;
        drop_role(&mut admin, other, &other_role).await;
    }
}

/// What is remembered of a parent is for those who may read it there: to delete a row is not to read it.
#[tokio::test]
async fn an_owner_sees_rows_that_have_gone_only_of_tables_that_he_may_read() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let (other_role, mut other) = other(&database, &mut admin).await;
        execute(
            &mut owner,
            &format!(
                "create table app.secrets (id int primary key, word text); create table app.words (id int primary key, word text);
                 create table app.children (id int primary key, parent_id int references app.secrets on delete cascade);
                 grant usage on schema app to \"{other_role}\"; grant delete on app.secrets to \"{other_role}\"; grant select on app.words to \"{other_role}\""
            ),
        )
        .await;
        execute(&mut other, "create table other.children (id int primary key, parent_id int)").await;
        let child = |table: &str, parent: &str| Table {
            r#type: Some("parent.word".to_owned()),
            parent: Some(Parent {
                table: parent.to_owned(),
                column: "id".to_owned(),
                on: "parent_id".to_owned(),
            }),
            ..Table::new(table, "child")
        };
        let tables = [child("app.children", "app.secrets"), child("other.children", "app.words")];
        capture::apply(&mut admin, &tables, false).await.unwrap();
        execute(
            &mut owner,
            "insert into app.secrets values (7, 'hunter2'); insert into app.words values (1, 'open')",
        )
        .await;

        let seen = "select count(postrider.departed_row('app.secrets'::regclass, 'id', '7')) + count(*) filter (where exists (select from postrider.departed))";
        for (granted, is_seen) in [
            ("select 1", 0),
            ("grant select (id) on app.secrets", 0),
            ("grant select (word) on app.secrets", 2),
            (
                "alter table app.secrets enable row level security; create policy hers on app.secrets using (true)",
                0,
            ),
        ] {
            let granted = if granted.starts_with("grant") {
                format!("{granted} to \"{other_role}\"")
            } else {
                granted.to_owned()
            };
            execute(&mut owner, &granted).await;
            execute(&mut other, "begin; delete from app.secrets").await;
            assert_eq!(number(&mut other, seen).await, is_seen, "{version}: {granted}");
            execute(&mut other, "rollback").await;
        }

        // The triggers of children find it, also those of another's, and whatever the session has set.
        execute(&mut owner, "insert into app.children values (1, 7)").await;
        execute(&mut other, "insert into other.children values (1, 1)").await;
        execute(&mut other, "delete from app.secrets").await;
        execute(
            &mut admin,
            "set row_security = off; begin; delete from app.words; delete from other.children; commit",
        )
        .await;
        assert_eq!(
            types(&mut admin).await,
            ["hunter2.created", "open.created", "hunter2.deleted", "open.deleted"],
            "{version}"
        );
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
