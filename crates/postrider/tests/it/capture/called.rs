//! What relays do to tables of others: with the rights of the tables' owners, and never by what somebody else has made of it.

use std::time::Duration;

use postrider::capture::{self, Table};
use postrider::outbox::{self, Columns, Error, Mode, Outbox, Preset};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, Version};
use sqlx::{Connection as _, PgConnection};

use super::execute;
use super::forging::{denied, number, other};
use super::owners::{Stage, drop_role};
use crate::outbox::{Keeping, read};
use crate::support::{open, reading};

/// An outbox whose triggers note what was done, by whom, and whether he could read the log. They may, whoever it is.
const SPIED: &str = "
    create table app.seen (what text, who text, could_read boolean);
    grant usage on schema app to public; grant insert on app.seen to public;
    create function app.spy() returns trigger language plpgsql as $$
    declare
        could_read boolean := true;
    begin
        begin
            perform from postrider.events;
        exception when insufficient_privilege then
            could_read := false;
        end;
        insert into app.seen values (
            case when tg_op = 'DELETE' then 'cleaned' when new.published_at is distinct from old.published_at then 'sent'
                 when new.attempts <> old.attempts then 'refused' when new.last_error is distinct from old.last_error then 'told' else 'claimed' end,
            current_user, could_read);
        return coalesce(new, old);
    end $$;
    create table app.outbox (id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
        published_at timestamptz, attempts int not null default 0, last_error text, claimed_at timestamptz);
    create trigger spy before update or delete on app.outbox for each row execute function app.spy();
    create constraint trigger late after update or delete on app.outbox deferrable initially deferred for each row execute function app.spy()";

fn spied(mode: Mode) -> Outbox {
    Outbox {
        mode,
        stale_after: Duration::ZERO,
        cleanup: Some(Duration::ZERO),
        columns: Columns { claimed: Some("claimed_at".to_owned()), ..Columns::default() },
        ..Outbox::new("app.outbox", Preset::OutboxTopic)
    }
}

/// Somebody with the rights of a relay and no others.
async fn relay(database: &Database, admin: &mut PgConnection) -> (String, PgConnection) {
    let relay = format!("{}_relay", database.name());
    execute(admin, &format!("create role \"{relay}\" login in role postrider_relay")).await;
    let connection = PgConnection::connect(&database.url_as(&relay)).await.unwrap();
    (relay, connection)
}

/// Keeps the table for a while, as one who has just begun: he tells of everything at once.
async fn keep_anew(relay: &mut PgConnection, outbox: &Outbox) -> outbox::Result<()> {
    // What the first has marked, the second cleans up.
    for _ in 0..2 {
        let mut keeper = Keeping::open(relay, outbox).await?;
        while keeper.work(relay).await?.has_more {}
        keeper.close(relay).await?;
    }
    Ok(())
}

#[tokio::test]
async fn rows_of_an_outbox_are_marked_and_cleaned_up_with_its_owners_rights() {
    for (version, mode) in [
        (Version::V14, Mode::Trigger),
        (Version::V14, Mode::Poll),
        (Version::V18, Mode::Trigger),
        (Version::V18, Mode::Poll),
    ] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(&mut owner, SPIED).await;
        let outbox = spied(mode);
        outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
        let again = outbox::plan(&mut admin, std::slice::from_ref(&outbox)).await.unwrap();
        assert!(again.is_done(), "{version} {mode:?}: {again:?}");
        let (relay_role, mut relay) = relay(&database, &mut admin).await;
        let mut reader = open(&database, reading("one")).await;
        execute(
            &mut owner,
            "insert into app.outbox (topic, key, payload, claimed_at)
             values ('t', 'k', '{}', now() - interval '1 hour'), ('t', 'k', '{}', null), ('t', 'k', '{}', null)",
        )
        .await;
        keep_anew(&mut relay, &outbox).await.unwrap();
        execute(
            &mut admin,
            "insert into postrider.parked (sink, id, lane, seq, type, payload, created_at, state, attempts, kind, reason)
             select s.sink, e.id, e.lane, e.seq, e.type, e.payload, e.created_at, case e.source_id when '2' then 'waiting' else 'behind' end,
                    case e.source_id when '2' then 3 else 0 end, case e.source_id when '2' then 'rejected' end, case e.source_id when '2' then 'no such topic' end
             from postrider.events e, postrider.sinks s where e.source_id <> '1'",
        )
        .await;
        read(&mut reader, 3).await;
        keep_anew(&mut relay, &outbox).await.unwrap();
        let left: Vec<(i64, i32, String)> =
            sqlx::query_as("select id, attempts, last_error from app.outbox order by id")
                .fetch_all(&mut admin)
                .await
                .unwrap();
        let (refused, waits) =
            ("one: no such topic".to_owned(), "one: waits behind an earlier event of its key".to_owned());
        assert_eq!(left, [(2, 3, refused), (3, 0, waits)], "{version} {mode:?}");
        execute(&mut admin, "delete from postrider.parked").await;
        keep_anew(&mut relay, &outbox).await.unwrap();
        assert_eq!(number(&mut admin, "select count(*) from app.outbox").await, 0, "{version} {mode:?}");

        let seen: Vec<(String, String, bool)> =
            sqlx::query_as("select distinct what, who, could_read from app.seen order by 1, 2")
                .fetch_all(&mut admin)
                .await
                .unwrap();
        let mut expected = vec!["cleaned", "refused", "sent", "told"];
        if mode == Mode::Poll {
            expected.insert(0, "claimed");
        }
        let expected: Vec<_> =
            expected.into_iter().map(|what| (what.to_owned(), role.clone(), false)).collect();
        assert_eq!(seen, expected, "{version} {mode:?}");
        let rights = "select count(*) from unnest(array['select', 'insert', 'update', 'references']) r (of_column)
             where has_any_column_privilege('{}', 'app.outbox', r.of_column) or has_table_privilege('{}', 'app.outbox', 'delete, truncate, trigger')";
        assert_eq!(number(&mut admin, &rights.replace("{}", &relay_role)).await, 0, "{version} {mode:?}");
        reader.close().await.unwrap();
        drop_role(&mut admin, relay, &relay_role).await;
        drop_role(&mut admin, owner, &role).await;
    }
}

/// It would be called with the rights of the relay.
const CHANGED: &str = "create or replace function postrider_capture.keep_app_outbox(text, text[], bigint[], integer[], text[], double precision) returns bigint
    language plpgsql as $$ begin insert into app.seen values ('called', current_user, true); return 0; end $$";

#[tokio::test]
async fn an_owner_who_does_not_install_cannot_change_what_relays_call() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(&mut owner, SPIED).await;
    outbox::apply(&mut admin, &[spied(Mode::Trigger)], false).await.unwrap();
    let whose = "select count(*) from pg_proc where pronamespace = 'postrider_capture'::regnamespace and proowner = '{}'::regrole";
    assert_eq!(number(&mut admin, &whose.replace("{}", &role)).await, 4);
    for change in [
        CHANGED,
        "alter function postrider_capture.misfits_app_outbox() security invoker",
        "alter function postrider_capture.misfits_app_outbox() owner to current_user",
        "alter function postrider_capture.misfits_app_outbox() set schema app",
        "drop function postrider_capture.misfits_app_outbox()",
    ] {
        denied(&mut owner, change).await;
    }
    drop_role(&mut admin, owner, &role).await;
}

#[tokio::test]
async fn what_an_owner_who_installs_has_changed_is_not_called() {
    let Stage { database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(&mut admin, &format!("select postrider.allow_capture('{role}')")).await;
    execute(&mut owner, SPIED).await;
    let outbox = spied(Mode::Trigger);
    outbox::apply(&mut owner, std::slice::from_ref(&outbox), false).await.unwrap();
    let (relay_role, mut relay) = relay(&database, &mut admin).await;
    keep_anew(&mut relay, &outbox).await.unwrap();
    for change in [
        CHANGED,
        "alter function postrider_capture.misfits_app_outbox() security invoker",
        "drop function postrider_capture.misfits_app_outbox()",
    ] {
        execute(&mut owner, change).await;
        let refused = keep_anew(&mut relay, &outbox).await.unwrap_err();
        assert!(matches!(&refused, Error::NotCallable { .. }), "{change}: {refused}");
        assert_eq!(number(&mut admin, "select count(*) from app.seen").await, 0, "{change}");
        assert!(
            !outbox::plan(&mut admin, std::slice::from_ref(&outbox)).await.unwrap().is_done(),
            "{change}"
        );
        outbox::apply(&mut owner, std::slice::from_ref(&outbox), false).await.unwrap();
        keep_anew(&mut relay, &outbox).await.unwrap();
    }
    drop_role(&mut admin, relay, &relay_role).await;
    drop_role(&mut admin, owner, &role).await;
}

/// What was set outlives the function, whosever rights it had.
#[tokio::test]
async fn a_trigger_that_sets_another_search_path_ends_the_relays_session() {
    for version in [Version::V14, Version::V18] {
        let Stage { database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(
            &mut owner,
            "create function app.sets() returns trigger language plpgsql as $$ begin
                 perform pg_catalog.set_config('search_path', 'app, pg_catalog', false); return new; end $$;
             create table app.outbox (id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
                 published_at timestamptz, attempts int not null default 0, last_error text);
             create trigger sets before update on app.outbox for each row execute function app.sets()",
        )
        .await;
        let outbox = Outbox::new("app.outbox", Preset::OutboxTopic);
        outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
        let (relay_role, mut relay) = relay(&database, &mut admin).await;
        let mut reader = open(&database, reading("one")).await;
        execute(&mut owner, "insert into app.outbox (topic, payload) values ('t', '{}')").await;
        read(&mut reader, 1).await;
        let refused = keep_anew(&mut relay, &outbox).await.unwrap_err();
        assert!(matches!(&refused, Error::Names { .. }), "{version}: {refused}");
        reader.close().await.unwrap();
        drop_role(&mut admin, relay, &relay_role).await;
        drop_role(&mut admin, owner, &role).await;
    }
}

/// Whoever installs comes first and makes what another's table will want. He is neither called nor does he keep it.
#[tokio::test]
async fn a_function_under_the_name_of_anothers_is_neither_called_nor_kept() {
    let Stage { database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    let (other_role, mut other) = other(&database, &mut admin).await;
    execute(&mut admin, &format!("select postrider.allow_capture('{role}')")).await;
    execute(
        &mut other,
        "create table other.outbox (id bigint generated always as identity primary key, topic text not null, key text, payload jsonb not null,
             published_at timestamptz, attempts int not null default 0, last_error text);
         create table other.logs (id int primary key) partition by range (id)",
    )
    .await;
    let calls = [
        "misfits_other_outbox()",
        "keep_other_outbox(text, text[], bigint[], integer[], text[], double precision)",
    ];
    execute(&mut owner, "create table app.seen (who text); grant usage on schema app to public; grant insert on app.seen to public").await;
    for call in calls.into_iter().chain(["watch_other_logs()"]) {
        let mine = format!(
            "create function postrider_capture.{call} returns bigint language plpgsql as $$ begin insert into app.seen values (current_user); return 0; end $$;
             grant execute on function postrider_capture.{call} to pg_monitor"
        );
        execute(&mut owner, &mine).await;
    }
    for trigger in ["append_other_outbox()", "capture_other_logs()"] {
        let mine = format!(
            "create function postrider_capture.{trigger} returns trigger language plpgsql as 'begin return new; end';
             grant execute on function postrider_capture.{trigger} to pg_monitor"
        );
        execute(&mut owner, &mine).await;
    }
    let outbox = Outbox::new("other.outbox", Preset::OutboxTopic);
    let logs = Table::new("other.logs", "log");
    let (relay_role, mut relay) = relay(&database, &mut admin).await;
    let refused = keep_anew(&mut relay, &outbox).await.unwrap_err();
    assert!(matches!(&refused, Error::NotCallable { .. }), "{refused}");
    capture::sweep(&mut relay, std::slice::from_ref(&logs)).await.unwrap();
    assert_eq!(number(&mut admin, "select count(*) from app.seen").await, 0, "called by the relay");

    // The other cannot replace it, and is told so; a superuser does, and it is the other's then.
    execute(&mut admin, &format!("select postrider.allow_capture('{other_role}')")).await;
    let refused = outbox::apply(&mut other, std::slice::from_ref(&outbox), false).await.unwrap_err();
    assert!(refused.to_string().contains("must be owner of function"), "{refused}");
    // The transaction that failed ends, and with it its locks, when its connection is used again.
    execute(&mut other, "select 1").await;
    outbox::apply(&mut admin, std::slice::from_ref(&outbox), false).await.unwrap();
    capture::apply(&mut admin, std::slice::from_ref(&logs), false).await.unwrap();
    let mine = "select count(*) from pg_proc p where p.pronamespace = 'postrider_capture'::regnamespace
        and (p.proowner = '{}'::regrole or has_function_privilege('pg_monitor', p.oid, 'execute'))";
    assert_eq!(number(&mut admin, &mine.replace("{}", &role)).await, 0);
    keep_anew(&mut relay, &outbox).await.unwrap();
    capture::sweep(&mut relay, std::slice::from_ref(&logs)).await.unwrap();
    assert_eq!(number(&mut admin, "select count(*) from app.seen").await, 0, "called by the relay");
    drop_role(&mut admin, relay, &relay_role).await;
    drop_role(&mut admin, owner, &role).await;
    drop_role(&mut admin, other, &other_role).await;
}

/// What is found in the schema of the log is ours.
#[tokio::test]
async fn who_may_install_puts_nothing_beside_what_is_ours() {
    for version in [Version::V14, Version::V18] {
        let Stage { database: _database, mut admin, role, mut owner } = Stage::set(version).await;
        execute(&mut admin, &format!("select postrider.allow_capture('{role}')")).await;
        for beside in [
            // Fits an application's call better than those that there are.
            "create function postrider.emit(varchar, varchar) returns uuid language sql as 'select null::uuid'",
            "create table postrider.more (id int)",
            "create type postrider.kind as enum ('a')",
        ] {
            denied(&mut owner, beside).await;
        }
        execute(&mut owner, "create table app.orders (id int primary key)").await;
        capture::apply(&mut owner, &[Table::new("app.orders", "order")], false).await.unwrap();
        let path = "select count(*) from pg_proc p, unnest(p.proconfig) s where s ^@ 'search_path=' and s like '%postrider_capture%'";
        assert_eq!(number(&mut admin, path).await, 0, "{version}");
        drop_role(&mut admin, owner, &role).await;
    }
}

/// Those who had been let to create there once have the other schema in its place.
#[tokio::test]
async fn who_could_create_beside_ours_cannot_after_an_upgrade() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(
        &mut admin,
        &format!(
            "select postrider.allow_capture('{role}', false); grant create on schema postrider to \"{role}\""
        ),
    )
    .await;
    let again = Install { max_payload: Some(1_000_000), ..Install::default() };
    schema::install(&mut admin, &again).await.unwrap();
    denied(&mut owner, "create table postrider.more (id int)").await;
    execute(&mut owner, "create table app.orders (id int primary key)").await;
    let order = Table::new("app.orders", "order");
    capture::apply(&mut owner, std::slice::from_ref(&order), false).await.unwrap();
    assert!(capture::plan(&mut owner, &[order]).await.unwrap().is_done());
    drop_role(&mut admin, owner, &role).await;
}
