//! Others have been in the database before, or are at work in it.

use postrider::log::Error;
use postrider::schema::{self, Install};
use postrider_testkit::{Template, Version, postgres};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{database, emit, next, open, reading, run};

/// Functions that fit our calls better than the server's own, in a schema on everybody's path. They tell who has called them.
const TRAPS: &str = "
    create table public.trapped (who text, what text); grant insert on public.trapped to public;
    create function public.format(text, text) returns text language sql as $$
        insert into public.trapped values (current_user, 'format'); select pg_catalog.format($1, $2) $$;
    create function public.unnest(bigint[]) returns setof bigint language sql as $$
        insert into public.trapped values (current_user, 'unnest'); select * from pg_catalog.unnest($1) $$;
    create function public.replace(text, text, text) returns text language sql as $$
        insert into public.trapped values (current_user, 'replace'); select $1 $$;
    create function public.to_json(text) returns json language sql as $$
        insert into public.trapped values (current_user, 'to_json'); select pg_catalog.to_json($1) $$";

#[tokio::test]
async fn fault_113_nobody_elses_function_is_called_by_installer_or_reader() {
    let database = postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, TRAPS).await;
    schema::install(&mut connection, &Install::default()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(schema::script(&Install::default()))).execute(&mut connection).await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    emit(&mut connection, "one", "k").await;
    let batch = next(&mut reader).await;
    reader.settle(&batch).await.unwrap();
    reader.close().await.unwrap();
    let trapped: Vec<(String, String)> =
        sqlx::query_as("select who, what from public.trapped").fetch_all(&mut connection).await.unwrap();
    assert_eq!(trapped, []);
}

/// Who may create schemas makes ours first, and waits for a superuser to call what is in it.
#[tokio::test]
async fn fault_113_a_superuser_does_not_install_into_the_schema_of_somebody_else() {
    let database = postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap();
    let mut admin = database.connect().await.unwrap();
    let (name, evil) = (database.name(), format!("{}_evil", database.name()));
    sqlx::raw_sql(AssertSqlSafe(format!(
        "create role {evil} login; grant create on database {name} to {evil}"
    )))
    .execute(&mut admin)
    .await
    .unwrap();
    let mut stranger = PgConnection::connect(&database.url_as(&evil)).await.unwrap();
    run(
        &mut stranger,
        "create schema postrider; grant usage on schema postrider to public;
         create function postrider.schema_version() returns int language plpgsql as $$
             begin raise exception 'called as %', current_user; end $$",
    )
    .await;
    let refused = schema::install(&mut admin, &Install::default()).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("the schema postrider belongs to {evil}")), "{refused}");
    let script = AssertSqlSafe(schema::script(&Install::default()));
    let refused = sqlx::raw_sql(script).execute(&mut admin).await.unwrap_err().to_string();
    assert!(refused.contains("belongs to"), "{refused}");
    run(&mut admin, "rollback").await;
    // Nor does any command of a superuser's ask there which version it is.
    let refused = schema::check_version(&mut admin).await.unwrap_err();
    assert!(matches!(&refused, Error::Superuser { owner } if *owner == evil), "{refused}");
    stranger.close().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("drop owned by {evil} cascade; drop role {evil}")))
        .execute(&mut admin)
        .await
        .unwrap();
}

/// What relays call would be his to replace.
#[tokio::test]
async fn fault_113_a_schema_for_functions_that_somebody_else_has_made_is_refused() {
    let database = postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap();
    let mut admin = database.connect().await.unwrap();
    let evil = format!("{}_evil", database.name());
    let made = format!("create role {evil}; create schema postrider_capture authorization {evil}");
    sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut admin).await.unwrap();
    let refused = schema::install(&mut admin, &Install::default()).await.unwrap_err().to_string();
    let said = format!("a schema postrider_capture already, and it is not ours: it belongs to {evil}");
    assert!(refused.contains(&said), "{refused}");
    let gone = format!("drop owned by {evil}; drop role {evil}");
    sqlx::raw_sql(AssertSqlSafe(gone)).execute(&mut admin).await.unwrap();
    schema::install(&mut admin, &Install::default()).await.unwrap();
}

/// Whoever installs lets an application read and write everything of theirs by default. That is not meant for what is private here, and is as it
/// was afterwards.
#[tokio::test]
async fn fault_113_default_privileges_open_nothing_of_ours() {
    let database = postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap();
    let mut owner = database.connect().await.unwrap();
    let app = format!("{}_app", database.name());
    let give = format!(
        "create role {app};
         alter default privileges grant all on tables to {app} with grant option;
         alter default privileges grant usage on sequences to {app};
         alter default privileges grant execute on functions to {app};
         alter default privileges grant usage on schemas to {app}"
    );
    sqlx::raw_sql(AssertSqlSafe(give)).execute(&mut owner).await.unwrap();
    let defaults = "select string_agg(concat_ws(' ', d.defaclobjtype, d.defaclacl), ', ' order by d.defaclobjtype) from pg_default_acl d";
    let opened = format!(
        "select o.name from (select 'schema', nspacl from pg_namespace where nspname in ('postrider', 'postrider_capture')
             union all select relname::text, relacl from pg_class where relnamespace = 'postrider'::regnamespace
             union all select oid::regprocedure::text, proacl from pg_proc where pronamespace = 'postrider'::regnamespace) as o (name, acl)
         cross join aclexplode(o.acl) a where a.grantee = '{app}'::regrole"
    );
    let before: String = sqlx::query_scalar(defaults).fetch_one(&mut owner).await.unwrap();
    for again in [false, true] {
        if again {
            run(&mut owner, "alter default privileges in schema postrider grant select on tables to public")
                .await;
            sqlx::raw_sql(AssertSqlSafe(schema::script(&Install::default())))
                .execute(&mut owner)
                .await
                .unwrap();
            run(
                &mut owner,
                "alter default privileges in schema postrider revoke select on tables from public",
            )
            .await;
        } else {
            schema::install(&mut owner, &Install::default()).await.unwrap();
        }
        let opened: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(opened.clone())).fetch_all(&mut owner).await.unwrap();
        assert_eq!(opened, [""; 0]);
        let after: String = sqlx::query_scalar(defaults).fetch_one(&mut owner).await.unwrap();
        assert_eq!(after, before);
    }
    sqlx::raw_sql(AssertSqlSafe(format!("drop owned by {app}; drop role {app}")))
        .execute(&mut owner)
        .await
        .unwrap();
}

#[tokio::test]
async fn installing_again_waits_for_no_writer_and_lets_none_wait() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    run(&mut writer, "begin").await;
    emit(&mut writer, "open", "k").await;
    let mut installer = database.connect().await.unwrap();
    run(&mut installer, "set lock_timeout = '20s'").await;
    let install = Install { max_payload: Some(1_000_000), ..Install::default() };
    // In one transaction with the installer's locks still held, another writer goes on.
    let mut other = database.connect().await.unwrap();
    run(&mut other, "set lock_timeout = '20s'").await;
    schema::install(&mut installer, &install).await.unwrap();
    emit(&mut other, "meanwhile", "k").await;
    let script = schema::script(&install);
    let (but_commit, _) = script.rsplit_once("commit;").unwrap();
    sqlx::raw_sql(AssertSqlSafe(but_commit.to_owned())).execute(&mut installer).await.unwrap();
    emit(&mut other, "while it is not committed", "k").await;
    run(&mut installer, "rollback").await;
    run(&mut writer, "commit").await;
}

/// What a database has for its sessions by default is no reason to fail.
#[tokio::test]
async fn defaults_of_the_database_fail_no_installer() {
    let database = postgres(Version::default()).await.unwrap().database(&Template::empty()).await.unwrap();
    let mut admin = database.connect().await.unwrap();
    let name = database.name();
    sqlx::raw_sql(AssertSqlSafe(format!("alter database {name} set default_transaction_read_only = on")))
        .execute(&mut admin)
        .await
        .unwrap();
    let mut connection = database.connect().await.unwrap();
    schema::install(&mut connection, &Install::default()).await.unwrap();
    run(&mut admin, "begin; drop schema postrider cascade; commit").await;
    sqlx::raw_sql(AssertSqlSafe(schema::script(&Install::default()))).execute(&mut connection).await.unwrap();
    assert_eq!(schema::version(&mut admin).await.unwrap(), Some(schema::NEWEST));
}

/// One event with a byte that UTF8 has no equivalent for would stop every reader for ever.
#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let server = postgres(Version::default()).await.unwrap();
    let mut admin = PgConnection::connect(&server.url("postgres")).await.unwrap();
    for encoding in ["LATIN1", "WIN1252", "EUC_JP"] {
        let name = format!("encoded_{}_{}", encoding.to_lowercase(), std::process::id());
        sqlx::raw_sql(AssertSqlSafe(format!(
            "create database {name} encoding '{encoding}' template template0 locale 'C'"
        )))
        .execute(&mut admin)
        .await
        .unwrap();
        let mut connection = PgConnection::connect(&server.url(&name)).await.unwrap();
        let refused = schema::install(&mut connection, &Install::default()).await.unwrap_err().to_string();
        assert!(refused.contains(encoding), "{refused}");
        assert_eq!(schema::version(&mut connection).await.unwrap(), None);
        connection.close().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("drop database {name}"))).execute(&mut admin).await.unwrap();
    }
}

/// The xids of a restored log may come again in a younger cluster.
#[tokio::test]
async fn emitted_shows_nothing_of_a_transaction_that_only_has_the_same_number() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "insert into postrider.events (xid, slot, lane, id, type, payload)
         select (pg_current_xact_id()::text::bigint + 1)::text::xid8, 0, 0, gen_random_uuid(), 'restored', '1'",
    )
    .await;
    run(&mut connection, "begin").await;
    emit(&mut connection, "mine", "k").await;
    run(&mut connection, "savepoint s").await;
    emit(&mut connection, "mine too", "k").await;
    let (same, shown): (i64, Vec<String>) = sqlx::query_as(
        "select (select count(*) from postrider.events where xid = pg_current_xact_id()), (select array_agg(type) from postrider.emitted())",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(shown, ["mine", "mine too"]);
    // Another test may have taken the number in between: then there is nothing to see.
    assert!(same == 3 || same == 2, "{same}");
    run(&mut connection, "rollback").await;
}
