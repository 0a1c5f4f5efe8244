//! Whoever writes a captured or an adopted table needs no right of ours, and gets none by what is installed there.

use postrider::capture::{Parent, Table};
use postrider::declared;
use postrider::outbox::{Mode, Outbox, Preset};
use postrider_testkit::Version;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{captured, execute, types};
use crate::outbox::tables::table;
use crate::support::database_of;

const TABLES: &str =
    "create table public.parents (id int primary key, kind text, at timestamptz, took interval, part float8);
    create table public.children (id int primary key, parent_id int references parents on delete cascade);
    create table public.logs (id int primary key) partition by range (id);
    create table public.logs_1 partition of logs for values from (0) to (10)";

/// What a search path of the writer's own would find first.
const EVIL: &str = "create function evil.octet_length(text) returns int language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.to_json(anyelement) returns json language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.to_jsonb(anyelement) returns jsonb language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.now() returns timestamptz language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.pg_partition_root(regclass) returns regclass language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.pg_relation_filenode(regclass) returns oid language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.pg_sequence_last_value(regclass) returns bigint language plpgsql as $$ begin raise exception 'evil'; end $$;
    create function evil.hashtextextended(text, bigint) returns bigint language plpgsql as $$ begin raise exception 'evil'; end $$";

/// Who may write a column, and not read the row, does not read it in the event.
#[tokio::test]
async fn fault_113_who_may_not_read_a_captured_table_does_not_see_its_events() {
    let users = "create table public.users (id int primary key, name text, secret text); insert into users values (1, 'a', 'hunter2')";
    let (database, mut admin) = captured(users, &[Table::new("public.users", "user")]).await;
    let app = format!("{}_app", database.name());
    execute(
        &mut admin,
        &format!("create role \"{app}\" login in role postrider_emit; grant update (name), select (id) on users to \"{app}\""),
    )
    .await;
    let mut connection = PgConnection::connect(&database.url_as(&app)).await.unwrap();
    execute(&mut connection, "begin; update users set name = 'b' where id = 1").await;
    let error =
        sqlx::raw_sql("select payload from postrider.emitted()").execute(&mut connection).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("42501"));
    assert!(error.to_string().contains("may not see what this transaction emitted"), "{error}");
    execute(&mut connection, "rollback").await;
    execute(&mut admin, &format!("grant select on users to \"{app}\"")).await;
    execute(&mut connection, "begin; update users set name = 'b' where id = 1").await;
    let seen: Vec<String> =
        sqlx::query_scalar("select type from postrider.emitted()").fetch_all(&mut connection).await.unwrap();
    assert_eq!(seen, ["user.updated"]);
    // Whoever only plays another role is asked as that one.
    let mut player = database.connect().await.unwrap();
    execute(&mut player, &format!("revoke select on users from \"{app}\"; set role \"{app}\"")).await;
    assert!(sqlx::raw_sql("select payload from postrider.emitted()").execute(&mut player).await.is_err());
    connection.close().await.unwrap();
    execute(&mut admin, &format!("drop owned by \"{app}\" cascade; drop role \"{app}\"")).await;
}

fn tables() -> [Table; 3] {
    let parent =
        Parent { table: "public.parents".to_owned(), column: "id".to_owned(), on: "parent_id".to_owned() };
    [
        Table::new("public.parents", "parent"),
        Table {
            r#type: Some("parent.kind".to_owned()),
            parent: Some(parent),
            ..Table::new("public.children", "child")
        },
        Table::new("public.logs", "log"),
    ]
}

async fn settings(connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar(
        "select name || '=' || setting from pg_settings
         where name in ('TimeZone', 'IntervalStyle', 'extra_float_digits', 'DateStyle', 'bytea_output', 'search_path') order by 1",
    )
    .fetch_all(connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn whoever_may_write_a_table_needs_no_right_to_the_log_and_gets_none() {
    for version in [Version::V14, Version::V18] {
        let database = database_of(version).await;
        let mut admin = database.connect().await.unwrap();
        execute(&mut admin, TABLES).await;
        execute(&mut admin, table(Preset::Plane)).await;
        let polled = "create table public.polled (id bigserial primary key, topic text, key text, payload jsonb, published_at timestamptz)";
        execute(&mut admin, polled).await;
        let outboxes = [
            Outbox::new("public.outbox", Preset::Plane),
            Outbox { mode: Mode::Poll, ..Outbox::new("public.polled", Preset::OutboxTopic) },
        ];
        declared::apply(&mut admin, &tables(), &outboxes, false).await.unwrap();

        let writer = format!("{}_writer", database.name());
        execute(
            &mut admin,
            &format!(
                "create role \"{writer}\" login; create schema evil authorization \"{writer}\"; grant usage on schema public to \"{writer}\";
                 grant select, insert, update, delete, truncate on all tables in schema public to \"{writer}\";
                 grant usage on all sequences in schema public to \"{writer}\""
            ),
        )
        .await;
        let mut connection = PgConnection::connect(&database.url_as(&writer)).await.unwrap();
        execute(&mut connection, EVIL).await;
        execute(
            &mut connection,
            "set search_path = evil, pg_catalog, public; set timezone = 'Asia/Tokyo'; set intervalstyle = 'sql_standard';
             set extra_float_digits = -3; set datestyle = 'German'; set bytea_output = 'escape'; begin",
        )
        .await;
        let before = settings(&mut connection).await;
        execute(
            &mut connection,
            "insert into parents values (1, 'a', current_timestamp, '1 day', 0.1); insert into children values (1, 1); update children set id = 2;
             delete from parents; truncate logs_1;
             insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at)
             values (gen_random_uuid(), 'adopted', gen_random_uuid(), '{}', gen_random_uuid(), 'USER', current_timestamp)",
        )
        .await;
        assert_eq!(settings(&mut connection).await, before, "{version}: a session keeps its settings");
        execute(&mut connection, "commit; reset search_path").await;
        assert_eq!(
            types(&mut admin).await,
            [
                "parent.created",
                "a.created",
                "a.updated",
                "parent.deleted",
                "a.deleted",
                "log.partition.truncated",
                "adopted"
            ],
            "{version}"
        );

        // Also for one who may emit, and find what is in the schemas.
        let found = format!(
            "grant postrider_emit to \"{writer}\"; grant usage on schema postrider_capture to \"{writer}\""
        );
        execute(&mut admin, &found).await;
        for denied in [
            "select postrider_capture.move_public_polled(gen_random_uuid(), 1)",
            "select postrider_capture.misfits_public_outbox()",
            "select postrider_capture.watch_public_logs()",
            "select postrider.is_truncated_alone('logs_1'::regclass, 'logs'::regclass)",
            "select * from postrider.departed",
            "select * from postrider.misfits",
            "create table evil.own (id int); create trigger t before insert on evil.own for each row execute function postrider_capture.capture_public_parents()",
        ] {
            let error = sqlx::raw_sql(AssertSqlSafe(denied)).execute(&mut connection).await.unwrap_err();
            assert_eq!(
                error.as_database_error().unwrap().code().as_deref(),
                Some("42501"),
                "{version}: {denied}"
            );
        }
        connection.close().await.unwrap();
        execute(&mut admin, &format!("drop owned by \"{writer}\" cascade; drop role \"{writer}\"")).await;
    }
}
