//! What the owner of a table has prepared for the superuser who installs, records later or backfills: none of it runs with more rights
//! than the owner's.

use postrider::capture::{self, Backfill, Parent, Table};
use postrider::outbox::{self, Columns, Mode, Outbox, Preset};
use postrider_testkit::Version;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use super::owners::{Stage, drop_role, is_super};
use super::{execute, types};

#[tokio::test]
async fn a_kept_row_sets_nothing_but_what_its_trigger_keeps() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(
        &mut owner,
        "create table app.orders (id int primary key);
         create function app.plus(bigint, integer) returns bigint language plpgsql as
             'begin perform app.strike(); return pg_catalog.int84pl($1, $2); end';
         create operator app.+ (leftarg = bigint, rightarg = integer, function = app.plus)",
    )
    .await;
    let table = Table { context: vec!["app.who".to_owned()], ..Table::new("app.orders", "order") };
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    execute(
        &mut owner,
        r#"select postrider.record_failure('app.orders'::regclass, 'INSERT', null, '{"id": 1}',
               '{"search_path": "app, pg_catalog", "app.who": "me", "app.other": "x", "postrider.context": null}', 'XX000', 'hm', '1')"#,
    )
    .await;
    let done = capture::recapture(&mut admin, &table).await.unwrap();
    assert_eq!((done.writes, done.refused), (1, None));
    assert!(!is_super(&mut admin, &role).await, "by recapture");
    let who: Option<String> = sqlx::query_scalar("select headers ->> 'who' from postrider.events")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    assert_eq!(who.as_deref(), Some("me"));
    drop_role(&mut admin, owner, &role).await;
}

/// A setting that is not for the transaction alone stays when the function that it was made in has ended.
#[tokio::test]
async fn a_search_path_that_a_cast_leaves_behind_is_nobodys() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(
        &mut owner,
        "create function app.plus(bigint, integer) returns bigint language plpgsql as
             'begin perform app.strike(); return pg_catalog.int84pl($1, $2); end';
         create operator app.+ (leftarg = bigint, rightarg = integer, function = app.plus);
         create function app.same(text, text) returns boolean language plpgsql as
             'begin perform app.strike(); return pg_catalog.texteq($1, $2); end';
         create operator app.= (leftarg = text, rightarg = text, function = app.same);
         create type app.mood as enum ('fine');
         create function app.leaves(app.mood) returns json language plpgsql as $$ begin
             perform pg_catalog.set_config('search_path', 'app, pg_catalog', false); return '1'; end $$;
         create table app.orders (id int primary key, mood app.mood, note text)",
    )
    .await;
    let table = Table::new("app.orders", "order");
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    execute(
        &mut owner,
        "alter table app.orders rename note to remark; insert into app.orders values (1, 'fine'), (2, 'fine');
         alter table app.orders rename remark to note; create cast (app.mood as json) with function app.leaves(app.mood)",
    )
    .await;
    let path = "select current_setting('search_path')";
    let before: String = sqlx::query_scalar(path).fetch_one(&mut admin).await.unwrap();
    let done = capture::recapture(&mut admin, &table).await.unwrap();
    assert!(!is_super(&mut admin, &role).await, "by recapture");
    assert!(done.writes == 0 && done.refused.unwrap().message.contains("search path"));
    execute(&mut admin, "delete from postrider.capture_failures").await;
    let (backfill, _) = Backfill::open(&mut admin, &table, None).await.unwrap();
    let refused = backfill.page(&mut admin, 1).await.unwrap_err();
    assert!(refused.to_string().contains("search path"), "{refused}");
    assert!(!is_super(&mut admin, &role).await, "by backfill");
    let behind: String = sqlx::query_scalar(path).fetch_one(&mut admin).await.unwrap();
    assert_eq!(behind, before);
    drop_role(&mut admin, owner, &role).await;
}

/// Whoever was let to create in the schema, by hand, may create functions beside ours.
#[tokio::test]
async fn a_function_that_is_called_like_one_of_ours_is_not_called() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let let_in =
        format!("select postrider.allow_capture('{role}'); grant create on schema postrider to \"{role}\"");
    execute(&mut admin, &let_in).await;
    execute(
        &mut owner,
        "create function postrider.hand_over(text, text) returns void language sql as 'select app.strike()';
         create function postrider.note_partitions(text) returns void language sql as 'select app.strike()';
         create table app.logs (id int primary key) partition by range (id);
         create table app.logs_1 partition of app.logs for values from (0) to (10)",
    )
    .await;
    let table = Table::new("app.logs", "log");
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    assert!(!is_super(&mut admin, &role).await, "the owner of a table has become a superuser");
    assert!(capture::plan(&mut admin, &[table]).await.unwrap().is_done());
    drop_role(&mut admin, owner, &role).await;
}

#[tokio::test]
async fn a_cast_cannot_leave_the_role_that_expressions_are_checked_as() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let evil = format!(
        "create type app.k as (x int);
         create function app.leave() returns void language plpgsql as $$ begin
             begin
                 perform pg_catalog.set_config('role', session_user, true);
                 perform app.strike();
                 perform pg_catalog.set_config('role', '{role}', true);
             exception when others then null; end; end $$;
         create function app.ktext(app.k) returns text language plpgsql immutable as 'begin perform app.leave(); return ''k''; end';
         create cast (app.k as text) with function app.ktext(app.k);
         create table app.orders (id int primary key, k app.k)"
    );
    execute(&mut owner, &evil).await;
    let table = Table { tenant: Some("k::text".to_owned()), ..Table::new("app.orders", "order") };
    capture::apply(&mut admin, &[table], false).await.unwrap();
    assert!(!is_super(&mut admin, &role).await, "the owner of a table has become a superuser");
    drop_role(&mut admin, owner, &role).await;
}

/// Up to version 17 what is deferred runs as whoever commits.
#[tokio::test]
async fn what_a_cast_defers_runs_with_the_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create table app.bombs (id int);
             create function app.explode() returns trigger language plpgsql as 'begin perform app.strike(); return null; end';
             create constraint trigger late after insert on app.bombs deferrable initially deferred
                 for each row execute function app.explode();
             create function app.lays() returns void language sql as 'insert into app.bombs values (1)';
             create type app.k as (x int);
             create function app.ktext(app.k) returns text language plpgsql immutable as $$ begin
                 perform app.lays(); return 'k'; end $$;
             create cast (app.k as text) with function app.ktext(app.k);
             create table app.orders (id int primary key, k app.k, note text)",
        )
        .await;
        let table = Table { tenant: Some("k::text".to_owned()), ..Table::new("app.orders", "order") };
        capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
        assert!(!is_super(&mut admin, &role).await, "{version}: by apply");
        execute(
            &mut owner,
            "alter table app.orders rename note to remark; insert into app.orders values (1, row(1));
             alter table app.orders rename remark to note",
        )
        .await;
        assert_eq!(capture::recapture(&mut admin, &table).await.unwrap().writes, 1, "{version}");
        assert!(!is_super(&mut admin, &role).await, "{version}: by recapture");
        let (backfill, _) = Backfill::open(&mut admin, &table, None).await.unwrap();
        assert_eq!(backfill.page(&mut admin, 10).await.unwrap().emitted, 1, "{version}");
        assert!(!is_super(&mut admin, &role).await, "{version}: by backfill");
        assert_eq!(types(&mut admin).await, ["order.created", "order.snapshot"], "{version}");
        drop_role(&mut admin, owner, &role).await;
    }
}

/// He owns what was handed over to him, and may change it while it runs.
#[tokio::test]
async fn a_function_that_was_handed_over_is_made_anew_before_it_is_called_again() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(
        &mut owner,
        "create function app.opens() returns void language plpgsql as $$ begin
             perform app.strike();
             begin
                 alter function pg_temp.postrider_backfill(text, oid, app.orders, app.orders) security invoker;
             exception when undefined_function then null; end;
             begin
                 alter function pg_temp.postrider_recapture_row(text, oid, json, json, json) security invoker;
             exception when undefined_function then null; end;
         end $$;
         create type app.mood as enum ('fine');
         create function app.evil(app.mood) returns json language plpgsql as 'begin perform app.opens(); return ''1''; end';
         create table app.orders (id int primary key, mood app.mood, note text)",
    )
    .await;
    let table = Table::new("app.orders", "order");
    capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
    execute(
        &mut owner,
        "alter table app.orders rename note to remark; insert into app.orders values (1, 'fine'), (2, 'fine');
         alter table app.orders rename remark to note; create cast (app.mood as json) with function app.evil(app.mood)",
    )
    .await;
    let _ = capture::recapture(&mut admin, &table).await;
    assert!(!is_super(&mut admin, &role).await, "by recapture");
    execute(&mut admin, "delete from postrider.capture_failures").await;
    let (backfill, _) = Backfill::open(&mut admin, &table, None).await.unwrap();
    backfill.page(&mut admin, 1).await.unwrap();
    backfill.page(&mut admin, 1).await.unwrap();
    assert!(!is_super(&mut admin, &role).await, "by backfill");
    drop_role(&mut admin, owner, &role).await;
}

#[tokio::test]
async fn a_parent_that_goes_is_remembered_with_its_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create type app.mood as enum ('fine');
             create function app.evil(app.mood) returns json language plpgsql as $$ begin
                 perform app.strike(); return '\"fine\"'; end $$;
             create cast (app.mood as json) with function app.evil(app.mood);
             create table app.parents (id int primary key, kind text, mood app.mood);
             create table app.orders (id int primary key, parent_id int references app.parents on delete cascade)",
        )
        .await;
        let table = Table {
            r#type: Some("parent.kind".to_owned()),
            parent: Some(Parent {
                table: "app.parents".to_owned(),
                column: "id".to_owned(),
                on: "parent_id".to_owned(),
            }),
            ..Table::new("app.orders", "order")
        };
        capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
        assert!(capture::plan(&mut admin, &[table]).await.unwrap().is_done(), "{version}");
        execute(
            &mut owner,
            "insert into app.parents values (1, 'a', 'fine'); insert into app.orders values (1, 1); delete from app.parents",
        )
        .await;
        assert!(
            !is_super(&mut admin, &role).await,
            "{version}: the owner of a parent has become a superuser"
        );
        assert_eq!(types(&mut admin).await, ["a.created", "a.deleted"], "{version}");
        let called = "select postrider.remember_departed()";
        assert!(sqlx::raw_sql(AssertSqlSafe(called)).execute(&mut admin).await.is_err());
        drop_role(&mut admin, owner, &role).await;
    }
}

#[tokio::test]
async fn a_row_of_an_outbox_becomes_an_event_with_its_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create type app.mood as enum ('fine');
             create function app.evil(app.mood) returns json language plpgsql as $$ begin
                 perform app.strike(); return '1'; end $$;
             create cast (app.mood as json) with function app.evil(app.mood);
             create table app.outbox (id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
                 published_at timestamptz, attempts int not null default 0, last_error text, mood app.mood)",
        )
        .await;
        let outbox = Outbox::new("app.outbox", Preset::OutboxTopic);
        outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
        let again = outbox::plan(&mut admin, std::slice::from_ref(&outbox)).await.unwrap();
        assert!(again.is_done(), "{version}: {again:?}");
        execute(&mut owner, "insert into app.outbox (topic, payload, mood) values ('t', '{}', 'fine')").await;
        assert!(
            !is_super(&mut admin, &role).await,
            "{version}: the owner of an outbox has become a superuser"
        );
        assert_eq!(types(&mut admin).await, ["t"], "{version}");
        drop_role(&mut admin, owner, &role).await;
    }
}

/// An outbox with a claim, whose rows strike when they are claimed or told of, at once and deferred, and whose topics strike as text.
async fn striking_outbox(owner: &mut PgConnection) -> Outbox {
    execute(
        owner,
        "create function app.strikes() returns trigger language plpgsql as 'begin perform app.strike(); return new; end';
         create type app.topic as enum ('t', '');
         create function app.evil(app.topic) returns text language plpgsql as $$ begin
             perform app.strike(); return pg_catalog.textin(pg_catalog.enum_out($1)); end $$;
         create cast (app.topic as text) with function app.evil(app.topic);
         create table app.outbox (id bigint generated always as identity primary key, topic app.topic not null, key text, payload jsonb not null,
             published_at timestamptz, attempts int not null default 0, last_error text, claimed_at timestamptz);
         create trigger strikes before update on app.outbox for each row execute function app.strikes();
         create constraint trigger late after update on app.outbox deferrable initially deferred
             for each row execute function app.strikes();
         insert into app.outbox (topic, payload) values ('t', '{}'), ('', '{}')",
    )
    .await;
    let columns = Columns { claimed: Some("claimed_at".to_owned()), ..Columns::default() };
    Outbox { columns, ..Outbox::new("app.outbox", Preset::OutboxTopic) }
}

#[tokio::test]
async fn rows_that_wait_in_an_outbox_are_counted_and_taken_with_its_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        let outbox = striking_outbox(&mut owner).await;
        let plan = outbox::plan(&mut admin, std::slice::from_ref(&outbox)).await.unwrap();
        assert!(!is_super(&mut admin, &role).await, "{version}: by plan");
        assert!(plan.tables[0].notes.iter().any(|note| note.contains("1 rows are not sent")), "{plan:?}");
        outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
        assert!(!is_super(&mut admin, &role).await, "{version}: by apply");
        assert_eq!(types(&mut admin).await, ["t"], "{version}");
        let claimed = "select count(*) from app.outbox where claimed_at is not null";
        let claimed: i64 = sqlx::query_scalar(claimed).fetch_one(&mut admin).await.unwrap();
        assert_eq!(claimed, 1, "{version}");
        assert!(outbox::plan(&mut admin, &[outbox]).await.unwrap().is_done(), "{version}");
        drop_role(&mut admin, owner, &role).await;
    }
}

/// The functions that a relay calls, which has fewer rights than who installed them.
#[tokio::test]
async fn rows_of_a_polled_outbox_are_moved_with_its_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        let outbox = Outbox { mode: Mode::Poll, ..striking_outbox(&mut owner).await };
        outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
        let again = outbox::plan(&mut admin, std::slice::from_ref(&outbox)).await.unwrap();
        assert!(again.is_done(), "{version}: {again:?}");

        let relay = format!("{}_relay", database.name());
        execute(&mut admin, &format!("create role \"{relay}\" login in role postrider_relay")).await;
        let mut connection = PgConnection::connect(&database.url_as(&relay)).await.unwrap();
        let keeper = Uuid::now_v7();
        sqlx::query("insert into postrider.keepers (outbox, owner, name, expires_at) values ('app.outbox', $1, 'relay', clock_timestamp() + interval '1 hour')")
            .bind(keeper)
            .execute(&mut connection)
            .await
            .unwrap();
        let call = "select postrider_capture.move_app_outbox($1, 10)";
        let moved: i64 = sqlx::query_scalar(call).bind(keeper).fetch_one(&mut connection).await.unwrap();
        let strange: i64 =
            sqlx::query_scalar(call).bind(Uuid::now_v7()).fetch_one(&mut connection).await.unwrap();
        assert_eq!((moved, strange), (1, -1), "{version}");
        let misfits: i64 = sqlx::query_scalar("select postrider_capture.misfits_app_outbox()")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(misfits, 1, "{version}");
        assert!(
            !is_super(&mut admin, &role).await,
            "{version}: the owner of an outbox has become a superuser"
        );
        assert_eq!(types(&mut admin).await, ["t"], "{version}");
        let noted = "select (select count(*) from postrider.all_adopted) + (select count(*) from postrider.all_misfits)";
        let noted: i64 = sqlx::query_scalar(noted).fetch_one(&mut connection).await.unwrap();
        assert_eq!(noted, 2, "{version}");
        drop_role(&mut admin, connection, &relay).await;
        drop_role(&mut admin, owner, &role).await;
    }
}

/// By the text of its key, and by what a condition compares.
#[tokio::test]
async fn a_backfill_reads_its_pages_with_the_owners_rights() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create type app.mood as enum ('fine', 'sad');
             create function app.evil(app.mood) returns text language plpgsql immutable as $$ begin
                 perform app.strike(); return pg_catalog.textin(pg_catalog.enum_out($1)); end $$;
             create cast (app.mood as text) with function app.evil(app.mood);
             create function app.strikes(text) returns boolean language plpgsql as $$ begin perform app.strike(); return true; end $$;
             create domain app.word as text check (app.strikes(value));
             create table app.orders (mood app.mood primary key, word text);
             insert into app.orders values ('fine', 'x'), ('sad', 'x')",
        )
        .await;
        let table = Table::new("app.orders", "order");
        capture::apply(&mut admin, std::slice::from_ref(&table), false).await.unwrap();
        for condition in [None, Some("word = 'x'::app.word")] {
            let (backfill, _) = Backfill::open(&mut admin, &table, condition).await.unwrap();
            assert!(!is_super(&mut admin, &role).await, "{version}: by the condition");
            backfill.page(&mut admin, 1).await.unwrap();
            backfill.page(&mut admin, 1).await.unwrap();
            assert!(!is_super(&mut admin, &role).await, "{version}: by the key");
            assert_eq!(types(&mut admin).await, ["order.snapshot", "order.snapshot"], "{version}");
        }
        drop_role(&mut admin, owner, &role).await;
    }
}
