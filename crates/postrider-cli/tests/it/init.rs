//! `postrider init`.

use std::process::Stdio;

use postrider::schema;
use postrider_testkit::Database;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{End, empty_database, postrider, postrider_on};

async fn emit(url: &str) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query("select postrider.emit('order.paid', '{\"order\": 7}', key => '7')")
        .execute(&mut connection)
        .await?;
    connection.close().await
}

async fn run(database: &Database, statements: String) {
    let mut connection = database.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The lanes and the largest payload that are installed.
async fn settings(database: &Database) -> (i32, i64) {
    let mut connection = database.connect().await.unwrap();
    sqlx::query_as("select postrider.lanes(), postrider.max_payload()")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn installs_and_then_has_nothing_to_do() {
    let database = empty_database().await;
    let url = database.url();
    let first = End::of(&mut postrider_on(&url, &["init"])).expect(0);
    let version = schema::NEWEST;
    assert_eq!(first.stderr, format!("installed schema version {version} with 16 lanes\n"));
    assert_eq!(first.stdout, "");
    let second = End::of(&mut postrider_on(&url, &["init"])).expect(0);
    assert_eq!(second.stderr, format!("already at version {version}: nothing to do\n"));
    assert_eq!(settings(&database).await, (16, 64 * 1024 * 1024));
    emit(&url).await.unwrap();
}

#[tokio::test]
async fn takes_the_url_from_a_flag_and_the_address_from_variables() {
    let database = empty_database().await;
    End::of(&mut postrider(&["init", "--database", &database.url()])).expect(0);
    let port = database.server().port().to_string();
    let mut command = postrider(&["init"]);
    command
        .envs([("PGHOST", "127.0.0.1"), ("PGUSER", "postgres")])
        .env("PGPORT", port)
        .env("PGDATABASE", database.name());
    let end = End::of(&mut command).expect(0);
    assert!(end.stderr.starts_with("already"), "{}", end.stderr);
}

#[tokio::test]
async fn takes_lanes_and_the_largest_payload() {
    let database = empty_database().await;
    let url = database.url();
    let end = End::of(&mut postrider_on(&url, &["--json", "init", "--lanes", "4", "--max-payload", "64MB"]))
        .expect(0);
    let granted = ["consume", "emit", "reader", "relay"].map(|role| format!("postrider_{role}"));
    assert_eq!(end.json(), json!({"from": 0, "to": schema::NEWEST, "lanes": 4, "granted": granted}));
    assert_eq!(settings(&database).await, (4, 64_000_000));

    let end = End::of(&mut postrider_on(&url, &["init", "--max-payload", "16MiB", "--json"])).expect(0);
    assert_eq!(end.json(), json!({"from": schema::NEWEST, "to": schema::NEWEST, "lanes": 4, "granted": []}));
    assert!(end.stderr.contains("16777216 bytes"), "{}", end.stderr);
    assert_eq!(settings(&database).await, (4, 16 * 1024 * 1024));

    let end = End::of(&mut postrider_on(&url, &["init", "--lanes", "8"])).expect(1);
    assert_eq!(
        end.stderr,
        "error: this log was installed with 4 lanes, and their number is fixed from then on, so 8 is refused; leave it out, or, while \
         nothing is in the log yet, run `drop schema postrider, postrider_capture cascade` and install it anew\n"
    );
    emit(&url).await.unwrap();
}

#[tokio::test]
async fn twenty_at_once_all_succeed_and_one_installs() {
    let database = empty_database().await;
    let url = database.url();
    let children: Vec<_> = (0..20)
        .map(|_| {
            postrider_on(&url, &["init", "--json"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ends: Vec<End> =
        children.into_iter().map(|child| End::from(child.wait_with_output().unwrap()).expect(0)).collect();
    let installers = ends.iter().filter(|end| end.json()["from"] == 0).count();
    assert_eq!(installers, 1);
    for end in &ends {
        assert_eq!((&end.json()["to"], &end.json()["lanes"]), (&json!(schema::NEWEST), &json!(16)));
    }
    let mut connection = database.connect().await.unwrap();
    assert_eq!(schema::version(&mut connection).await.unwrap(), Some(schema::NEWEST));
    emit(&url).await.unwrap();
}

#[tokio::test]
async fn an_owner_who_may_not_create_roles_gets_the_statements() {
    let database = empty_database().await;
    // Roles belong to the whole server, which other tests share: names of our own.
    let name = database.name();
    let owner = format!("{name} owner");
    let role = format!("{name}'s app");
    run(&database, format!(r#"create role "{owner}" login; alter database "{name}" owner to "{owner}""#))
        .await;
    let url = database.url_as(&owner.replace(' ', "%20"));
    let words = [
        "init",
        "--emit-role",
        &role,
        "--relay-role",
        &role,
        "--consume-role",
        &role,
        "--reader-role",
        &role,
    ];

    let end = End::of(&mut postrider_on(&url, &words)).expect(1);
    let statement = format!(r#"create role "{role}" nologin;"#);
    assert!(end.stderr.lines().any(|line| line == statement), "{}", end.stderr);
    assert_eq!(schema::version(&mut database.connect().await.unwrap()).await.unwrap(), None);

    run(&database, statement).await;
    End::of(&mut postrider_on(&url, &words)).expect(0);
    run(&database, format!(r#"alter role "{role}" login"#)).await;
    emit(&database.url_as(&role.replace(' ', "%20").replace('\'', "%27"))).await.unwrap();

    run(
        &database,
        format!(r#"drop owned by "{role}"; drop role "{role}"; reassign owned by "{owner}" to postgres; drop role "{owner}""#),
    )
    .await;
}

#[tokio::test]
async fn says_to_whom_it_granted_rights() {
    let database = empty_database().await;
    let url = database.url();
    End::of(&mut postrider_on(&url, &["init"])).expect(0);
    // Roles belong to the whole server, which other tests share: names of our own.
    let role = format!("{} app", database.name());
    let words = ["init", "--emit-role", &role, "--reader-role", &role];
    let end = End::of(&mut postrider_on(&url, &words)).expect(0);
    let version = schema::NEWEST;
    assert_eq!(end.stderr, format!("already at version {version}; granted rights to {role}\n"));
    let end = End::of(&mut postrider_on(&url, &words)).expect(0);
    assert_eq!(end.stderr, format!("already at version {version}: nothing to do\n"));
    // The same role for something else.
    let words = ["init", "--json", "--relay-role", &role];
    let end = End::of(&mut postrider_on(&url, &words)).expect(0);
    assert_eq!(end.json()["granted"], json!([role]));
    run(&database, format!(r#"drop owned by "{role}"; drop role "{role}""#)).await;
}

#[tokio::test]
async fn who_lacks_a_right_gets_the_statement_that_grants_it() {
    let database = empty_database().await;
    let name = database.name();
    let owner = format!("{name} owner");
    let guest = format!("{name} guest");
    run(&database, format!(r#"create role "{guest}" login; create role "{owner}" login"#)).await;
    let url = database.url_as(&guest.replace(' ', "%20"));

    let end = End::of(&mut postrider_on(&url, &["init"])).expect(1);
    assert!(end.stderr.contains("may not create a schema in this database"), "{}", end.stderr);
    let statement = format!(r#"grant create on database {name} to "{guest}";"#);
    assert!(end.stderr.lines().any(|line| line == statement), "{}", end.stderr);
    // The roles are there: other tests made them, or this does.
    End::of(&mut postrider_on(&empty_database().await.url(), &["init"])).expect(0);
    run(&database, statement).await;
    End::of(&mut postrider_on(&url, &["init"])).expect(0);

    run(&database, format!(r#"reassign owned by "{guest}" to "{owner}""#)).await;
    let end = End::of(&mut postrider_on(&url, &["init"])).expect(1);
    assert!(end.stderr.contains(&format!("which belongs to {owner:?}")), "{}", end.stderr);
    let statement = format!(r#"grant "{owner}" to "{guest}";"#);
    assert!(end.stderr.lines().any(|line| line == statement), "{}", end.stderr);
    run(&database, statement).await;
    End::of(&mut postrider_on(&url, &["init"])).expect(0);
    run(
        &database,
        format!(r#"reassign owned by "{owner}" to postgres; drop owned by "{guest}"; drop role "{guest}"; drop role "{owner}""#),
    )
    .await;
}

/// What we create "if it does not exist" would be theirs.
#[tokio::test]
async fn a_schema_of_somebody_else_is_left_alone() {
    let database = empty_database().await;
    let owner = format!("{}_owner", database.name());
    let guest = format!("{}_guest", database.name());
    run(
        &database,
        format!(
            "create role {owner} login; create role {guest} login;
             create schema postrider authorization {owner};
             create table postrider.events (id integer); alter table postrider.events owner to {owner};
             grant create on database {0} to {guest}; grant create on database {0} to {owner}",
            database.name()
        ),
    )
    .await;
    // Its owner, somebody without any right to it, and a superuser.
    for url in [database.url_as(&owner), database.url_as(&guest), database.url()] {
        let end = End::of(&mut postrider_on(&url, &["init"])).expect(1);
        assert!(
            end.stderr.contains("there is a schema postrider already, and it is not ours: it has events")
                && end.stderr.contains("alter schema postrider rename to"),
            "{}",
            end.stderr
        );
    }
    // An empty one is what an administrator makes for us.
    run(&database, "drop table postrider.events".to_owned()).await;
    End::of(&mut postrider_on(&empty_database().await.url(), &["init"])).expect(0);
    End::of(&mut postrider_on(&database.url_as(&owner), &["init"])).expect(0);
    run(
        &database,
        format!("drop schema postrider cascade; drop owned by {owner}, {guest}; drop role {owner}, {guest}"),
    )
    .await;
}

#[tokio::test]
async fn a_database_without_an_encoding_is_refused() {
    let beside = empty_database().await;
    let name = format!("{}_ascii", beside.name());
    run(
        &beside,
        format!(
            r#"create database "{name}" template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'"#
        ),
    )
    .await;
    let url = beside.url().replace(beside.name(), &name);
    let end = End::of(&mut postrider_on(&url, &["init"])).expect(1);
    assert!(end.stderr.contains("SQL_ASCII") && end.stderr.contains("hint: "), "{}", end.stderr);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    assert_eq!(schema::version(&mut connection).await.unwrap(), None);
    connection.close().await.unwrap();
    run(&beside, format!(r#"drop database "{name}""#)).await;
}

#[tokio::test]
async fn a_schema_from_the_future_is_left_alone() {
    let database = empty_database().await;
    let url = database.url();
    End::of(&mut postrider_on(&url, &["init"])).expect(0);
    run(
        &database,
        "create or replace function postrider.schema_version() returns integer language sql immutable as 'select 999'".to_owned(),
    )
    .await;
    let end = End::of(&mut postrider_on(&url, &["init"])).expect(1);
    assert!(
        end.stderr.starts_with("error: ") && end.stderr.contains("use a newer postrider"),
        "{}",
        end.stderr
    );
}
