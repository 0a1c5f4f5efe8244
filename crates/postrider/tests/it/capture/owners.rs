//! Whose rights a trigger has: those of the table's owner, whoever installed it.

use postrider::capture::{self, Backfill, Error, OnFailure, Parent, Table};
use postrider::declared;
use postrider::outbox::{Mode, Outbox, Preset};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::forging::other;
use super::{execute, types};
use crate::outbox::{keep, keeper};
use crate::support::database_of;

/// A database with the one who installs, and a role that owns the schema `app`, of whom he should beware.
pub(super) struct Stage {
    pub(super) database: Database,
    pub(super) admin: PgConnection,
    pub(super) role: String,
    pub(super) owner: PgConnection,
}

impl Stage {
    /// With `app.strike()`, which makes the role a superuser, if whoever runs it can.
    pub(super) async fn set(version: Version) -> Self {
        let database = database_of(version).await;
        let mut admin = database.connect().await.unwrap();
        let role = format!("{}_own", database.name());
        execute(
            &mut admin,
            &format!("create role \"{role}\" login; create schema app authorization \"{role}\""),
        )
        .await;
        let mut owner = PgConnection::connect(&database.url_as(&role)).await.unwrap();
        let strike = format!(
            "create function app.strike() returns void language plpgsql as $$ begin
                 if (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
                     execute 'alter role \"{role}\" superuser'; end if; end $$"
        );
        execute(&mut owner, &strike).await;
        Self { database, admin, role, owner }
    }
}

pub(super) async fn drop_role(admin: &mut PgConnection, connection: PgConnection, role: &str) {
    connection.close().await.unwrap();
    execute(admin, &format!("drop owned by \"{role}\" cascade; drop role \"{role}\"")).await;
}

pub(super) async fn is_super(admin: &mut PgConnection, role: &str) -> bool {
    sqlx::query_scalar("select rolsuper from pg_roles where rolname = $1")
        .bind(role)
        .fetch_one(admin)
        .await
        .unwrap()
}

/// A cast of a type of his own would otherwise be called with the rights of whoever ran apply.
#[tokio::test]
async fn an_owner_gets_no_rights_by_what_a_superuser_installed() {
    for version in [Version::V14, Version::V18] {
        for on_failure in [OnFailure::Refuse, OnFailure::Record] {
            let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
            execute(&mut owner, "create table app.orders (id int primary key)").await;
            let table = Table { on_failure, ..Table::new("app.orders", "order") };
            capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
            assert!(capture::plan(&mut admin, std::slice::from_ref(&table)).await.unwrap().is_done());
            execute(&mut owner, "insert into app.orders values (1)").await;
            assert_eq!(types(&mut admin).await, ["order.created"], "{version}");
            // What is kept, and what waits behind it, is kept where he has no right to write or to look.
            execute(
                &mut owner,
                "alter table app.orders rename id to number; insert into app.orders values (4);
                 alter table app.orders rename number to id; insert into app.orders values (5); truncate app.orders",
            )
            .await;
            assert_eq!(types(&mut admin).await, [""; 0], "{version}");
            assert_eq!(capture::recapture(&mut admin, &table).await.unwrap().writes, 3, "{version}");
            assert_eq!(
                types(&mut admin).await,
                ["order.created", "order.created", "order.truncated"],
                "{version}"
            );

            let evil = format!(
                "create type app.mood as enum ('fine');
                 create function app.evil(app.mood) returns json language plpgsql as $$ begin
                     execute 'alter role \"{role}\" superuser'; return '1'; end $$;
                 create cast (app.mood as json) with function app.evil(app.mood);
                 alter table app.orders add column mood app.mood"
            );
            execute(&mut owner, &evil).await;
            // With a trigger that does not know the column yet, and with one that does.
            let _ = sqlx::raw_sql("insert into app.orders values (2, 'fine')").execute(&mut owner).await;
            execute(&mut admin, "delete from postrider.capture_failures").await;
            capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
            let _ = sqlx::raw_sql("insert into app.orders values (3, 'fine')").execute(&mut owner).await;
            let became = is_super(&mut admin, &role).await;
            assert!(!became, "{version}, {on_failure:?}: the owner of a table has become a superuser");
            drop_role(&mut admin, owner, &role).await;
        }
    }
}

/// What is immutable is called already when an expression is planned.
#[tokio::test]
async fn an_owner_gets_no_rights_by_what_a_superuser_plans() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let evil = format!(
        "create type app.mood as enum ('fine');
         create function app.strikes() returns json language plpgsql as $$ begin
             execute 'alter role \"{role}\" superuser'; return '1'; end $$;
         create function app.evil(app.mood) returns json immutable language plpgsql as 'begin return app.strikes(); end';
         create cast (app.mood as json) with function app.evil(app.mood);
         create table app.orders (id int primary key, mood app.mood)"
    );
    execute(&mut owner, &evil).await;
    let table = Table { tenant: Some("mood::json ->> 'x'".to_owned()), ..Table::new("app.orders", "order") };
    let applied = capture::apply(&mut admin, &[table], false).await;
    assert!(!is_super(&mut admin, &role).await, "the owner of a table has become a superuser");
    assert!(matches!(applied, Err(Error::Expression { .. })), "{applied:?}");
    drop_role(&mut admin, owner, &role).await;
}

/// Rows that are read again are read with his rights too.
#[tokio::test]
async fn an_owner_gets_no_rights_by_what_a_superuser_records_later() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    // It does no harm to himself.
    let evil = format!(
        "create function app.strikes(int) returns boolean language plpgsql as $$ begin
             if current_user <> '{role}' then execute 'alter role \"{role}\" superuser'; end if; return true; end $$;
         create domain app.number as int check (app.strikes(value));
         create type app.mood as enum ('fine');
         create function app.evil(app.mood) returns json language plpgsql as $$ begin perform app.strikes(1); return '\"fine\"'; end $$;
         create cast (app.mood as json) with function app.evil(app.mood);
         create table app.orders (id int primary key, mood app.mood, number app.number, note text)"
    );
    execute(&mut owner, &evil).await;
    let table = Table::new("app.orders", "order");
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    execute(
        &mut owner,
        "alter table app.orders rename note to remark; insert into app.orders values (1, 'fine', 1);
         alter table app.orders rename remark to note; insert into app.orders values (2, 'fine', 2)",
    )
    .await;
    let done = capture::recapture(&mut admin, &table).await.unwrap();
    assert_eq!((done.writes, done.refused), (2, None));
    assert!(!is_super(&mut admin, &role).await, "by recapture");
    let (backfill, _) = Backfill::open(&mut admin, &table, None).await.unwrap();
    assert_eq!(backfill.page(&mut admin, 10).await.unwrap().emitted, 2);
    assert!(!is_super(&mut admin, &role).await, "by backfill");
    assert_eq!(types(&mut admin).await.len(), 4);
    drop_role(&mut admin, owner, &role).await;
}

/// Whose it is, and not that a right is missing.
#[tokio::test]
async fn a_partition_of_another_role_is_named_with_its_owner() {
    let Stage { database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let (other_role, other) = other(&database, &mut admin).await;
    execute(
        &mut owner,
        "create table app.logs (id int primary key) partition by range (id);
         create table app.logs_1 partition of app.logs for values from (0) to (10)",
    )
    .await;
    execute(
        &mut admin,
        &format!(
            "select postrider.allow_capture('{role}'); alter table app.logs_1 owner to \"{other_role}\""
        ),
    )
    .await;
    let table = Table::new("app.logs", "log");
    let refused = capture::apply(&mut owner, std::slice::from_ref(&table), false).await.unwrap_err();
    assert!(matches!(&refused, Error::NotTheOwner { owner, .. } if *owner == other_role), "{refused}");
    assert!(refused.to_string().starts_with("app.logs_1, a partition of app.logs, belongs to"), "{refused}");
    capture::apply(&mut admin, &[table], false).await.unwrap();
    drop_role(&mut admin, owner, &role).await;
    drop_role(&mut admin, other, &other_role).await;
}

/// What `allow_capture` gives is enough for everything, and no more than that is needed.
#[tokio::test]
async fn an_owner_who_is_allowed_to_installs_for_himself() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create table app.parents (id int primary key, kind text);
             create table app.orders (id int primary key, parent_id int references app.parents on delete cascade, note text);
             create table app.logs (id int primary key) partition by range (id);
             create table app.logs_1 partition of app.logs for values from (0) to (10)",
        )
        .await;
        let tables = [
            Table::new("app.parents", "parent"),
            Table {
                r#type: Some("parent.kind".to_owned()),
                parent: Some(Parent {
                    table: "app.parents".to_owned(),
                    column: "id".to_owned(),
                    on: "parent_id".to_owned(),
                }),
                ..Table::new("app.orders", "order")
            },
            Table::new("app.logs", "log"),
        ];
        execute(&mut admin, &format!("select postrider.allow_capture('{role}')")).await;
        declared::apply(&mut owner, &tables, &[], false).await.unwrap();
        let again = declared::plan(&mut owner, &tables, &[]).await.unwrap();
        assert!(again.is_done(), "{version}: {again:?}");
        execute(
            &mut owner,
            "insert into app.parents values (1, 'a'); insert into app.orders values (1, 1); delete from app.parents;
             truncate app.logs_1; truncate app.logs; insert into app.logs values (1)",
        )
        .await;
        assert_eq!(
            types(&mut admin).await,
            [
                "parent.created",
                "a.created",
                "parent.deleted",
                "a.deleted",
                "log.partition.truncated",
                "log.truncated",
                "log.created"
            ],
            "{version}"
        );
        execute(
            &mut owner,
            "alter table app.orders rename note to remark; insert into app.orders values (2)",
        )
        .await;
        assert_eq!(types(&mut admin).await, [""; 0]);
        for denied in ["select * from postrider.events", "insert into postrider.events (type) values ('x')"] {
            let refused = sqlx::raw_sql(AssertSqlSafe(denied)).execute(&mut owner).await.unwrap_err();
            assert!(refused.to_string().contains("permission denied"), "{refused}");
        }
        execute(&mut owner, "update app.orders set remark = 'x'").await;
        let kept: i64 = sqlx::query_scalar("select count(*) from postrider.capture_failures")
            .fetch_one(&mut owner)
            .await
            .unwrap();
        assert_eq!(kept, 2);
        drop_role(&mut admin, owner, &role).await;
    }
}

/// Without it the error names the statement.
#[tokio::test]
async fn an_owner_who_is_not_allowed_to_is_told_what_it_takes() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(&mut owner, "create table app.orders (id int primary key)").await;
    let refused = capture::apply(&mut owner, &[Table::new("app.orders", "order")], false).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains(&format!("select postrider.allow_capture('{role}')")), "{said}");
    drop_role(&mut admin, owner, &role).await;
}

/// REASSIGN OWNED gives a table and its functions to somebody else, and none of the rights that they need.
#[tokio::test]
async fn a_table_whose_new_owner_may_not_record_is_outdated_until_apply_lets_him() {
    let Stage { database, mut admin, role, owner } = Stage::set(Version::default()).await;
    let (heir, mut heir_connection) = other(&database, &mut admin).await;
    let outbox = "(id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
        published_at timestamptz, attempts int not null default 0, last_error text)";
    execute(
        &mut admin,
        &format!(
            "set role \"{role}\"; create table app.parents (id int primary key);
             create table app.orders (id int primary key, parent_id int references app.parents on delete cascade);
             create table app.outbox {outbox}; create table app.polled {outbox}; reset role"
        ),
    )
    .await;
    let parent =
        Parent { table: "app.parents".to_owned(), column: "id".to_owned(), on: "parent_id".to_owned() };
    let tables = [Table { parent: Some(parent), ..Table::new("app.orders", "order") }];
    let outboxes = [
        Outbox::new("app.outbox", Preset::OutboxTopic),
        Outbox { mode: Mode::Poll, ..Outbox::new("app.polled", Preset::OutboxTopic) },
    ];
    declared::apply(&mut admin, &tables, &outboxes, false).await.unwrap();
    execute(&mut admin, &format!("reassign owned by \"{role}\" to \"{heir}\"")).await;

    let plan = declared::plan(&mut admin, &tables, &outboxes).await.unwrap();
    let states: Vec<capture::State> = plan.tables.iter().map(|table| table.state).collect();
    assert_eq!(states, [capture::State::Outdated; 4], "{plan:?}");
    // For a relay too, which may not do anything about it.
    execute(&mut admin, "set role postrider_relay").await;
    assert_eq!(capture::alarms(&mut admin, &tables).await.unwrap().len(), 2);
    execute(&mut admin, "reset role").await;

    declared::apply(&mut admin, &tables, &outboxes, false).await.unwrap();
    assert!(declared::plan(&mut admin, &tables, &outboxes).await.unwrap().is_done());
    execute(
        &mut heir_connection,
        "insert into app.parents values (1); insert into app.orders values (1, 1); delete from app.parents;
         insert into app.outbox (topic, payload) values ('adopted', '{}'); insert into app.polled (topic, payload) values ('polled', '{}')",
    )
    .await;
    let mut keeper = keeper(&mut admin, &outboxes[1]).await;
    keep(&mut keeper, &mut admin).await;
    assert_eq!(types(&mut admin).await, ["order.created", "order.deleted", "adopted", "polled"]);
    drop_role(&mut admin, heir_connection, &heir).await;
    drop_role(&mut admin, owner, &role).await;
}

/// A trigger looks for the parent with the rights of who owns the child: without them every write would fail.
#[tokio::test]
async fn a_parent_that_the_owner_of_the_child_may_not_read_is_refused_with_the_remedy() {
    let Stage { database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let (other_role, mut other) = other(&database, &mut admin).await;
    let parents = "create table other.parents (id int primary key, kind text); insert into other.parents values (1, 'a')";
    execute(&mut other, parents).await;
    execute(&mut owner, "create table app.orders (id int primary key, parent_id int)").await;
    let parent =
        Parent { table: "other.parents".to_owned(), column: "id".to_owned(), on: "parent_id".to_owned() };
    let tables = [Table {
        r#type: Some("parent.kind".to_owned()),
        parent: Some(parent),
        ..Table::new("app.orders", "order")
    }];
    let refused = capture::apply(&mut admin, &tables, false).await.unwrap_err();
    let Error::Unreadable { statement, .. } = &refused else { panic!("{refused}") };
    execute(&mut other, statement).await;
    capture::apply(&mut admin, &tables, false).await.unwrap();
    execute(&mut owner, "insert into app.orders values (1, 1)").await;
    assert_eq!(types(&mut admin).await, ["a.created"]);
    drop_role(&mut admin, owner, &role).await;
    drop_role(&mut admin, other, &other_role).await;
}
