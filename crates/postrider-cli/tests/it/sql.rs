//! `postrider sql`.

use std::io::Write as _;
use std::process::Stdio;

use postrider::schema;
use postrider_testkit::Database;
use sqlx::Row as _;

use crate::support::{End, empty_database, postrider};

/// Runs a script with Debian's psql.
pub(crate) fn psql(database: &Database, script: &str) -> End {
    let mut child = database
        .server()
        .run_as("psql")
        .unwrap()
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &database.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    End::from(child.wait_with_output().unwrap())
}

#[tokio::test]
async fn the_script_installs_with_psql_and_may_be_run_again() {
    let database = empty_database().await;
    let words = ["sql", "--lanes", "2", "--max-payload", "1kB"];
    let script = End::of(&mut postrider(&words)).expect(0);
    assert_eq!(script.stderr, "");
    for _ in 0..2 {
        psql(&database, &script.stdout).expect(0);
    }
    let mut connection = database.connect().await.unwrap();
    assert_eq!(schema::version(&mut connection).await.unwrap(), Some(schema::NEWEST));
    let row =
        sqlx::query("select postrider.emit('order.paid', '{}'), postrider.lanes(), postrider.max_payload()")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((row.get::<i32, _>(1), row.get::<i64, _>(2)), (2, 1000));
}

#[tokio::test]
async fn the_script_is_what_init_installs() {
    // Everything in the schema, by definition: what an upgrade by the other way must not change.
    const CATALOGUE: &str = "
        select 'function ' || pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '') from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace
        union all
        select 'relation ' || c.relname || c.relkind::text || coalesce(c.relacl::text, '') || coalesce(
                   (select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull, ', ' order by a.attnum)
                    from pg_attribute a where a.attrelid = c.oid and a.attnum > 0), '')
        from pg_class c where c.relnamespace = 'postrider'::regnamespace
        order by 1";
    let (by_init, by_script) = (empty_database().await, empty_database().await);
    let words = |command| [command, "--lanes", "4", "--max-payload", "5MB"];
    End::of(postrider(&words("init")).env("DATABASE_URL", by_init.url())).expect(0);
    let script = End::of(&mut postrider(&words("sql"))).expect(0);
    psql(&by_script, &script.stdout).expect(0);
    let mut catalogues = Vec::new();
    for database in [&by_init, &by_script] {
        let mut connection = database.connect().await.unwrap();
        let catalogue: Vec<String> = sqlx::query_scalar(CATALOGUE).fetch_all(&mut connection).await.unwrap();
        assert!(catalogue.len() > 20, "{catalogue:?}");
        catalogues.push(catalogue);
    }
    assert_eq!(catalogues[0], catalogues[1]);
}

#[test]
fn json_carries_the_script() {
    let plain = End::of(&mut postrider(&["sql"])).expect(0);
    let json = End::of(&mut postrider(&["sql", "--json"])).expect(0).json();
    assert_eq!(json["script"], plain.stdout.as_str());
    assert_eq!(json["version"], schema::NEWEST);
}

#[test]
fn a_role_cannot_break_out_of_the_script() {
    let words = ["sql", "--emit-role", "x'; drop table users; --"];
    let script = End::of(&mut postrider(&words)).expect(0).stdout;
    assert!(script.contains("'x''; drop table users; --'"), "{script}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = postrider(&["sql"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let end = End::from(child.wait_with_output().unwrap()).expect(0);
    assert_eq!(end.stderr, "");
}
