//! `on_failure: record`: whatever keeps an event from being recorded, the write commits, and `recapture` yields exactly what is
//! missing. Without it the write is refused.

use postrider::capture::{self, OnFailure, Table};
use postrider::schema::{self, Install};
use postrider_testkit::{PostgresServer, Settings, Template, Version, postgres};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{events, execute};
use crate::support::database_on;

const ORDERS: &str = "create table public.orders (id int primary key, divisor int)";

fn recording() -> Table {
    Table {
        tenant: Some("100 / divisor".to_owned()),
        on_failure: OnFailure::Record,
        ..Table::new("public.orders", "order")
    }
}

/// A row that comes, changes and goes, in three transactions.
async fn write(connection: &mut PgConnection) {
    for statement in
        ["insert into orders values (1, 5)", "update orders set divisor = 10", "delete from orders"]
    {
        execute(connection, statement).await;
    }
}

/// Exactly the events of [`write`].
async fn assert_written(connection: &mut PgConnection, why: &str) {
    let found = events(connection).await;
    let event = |kind: &str, divisor: i32, previous: Value| {
        (format!("order.{kind}"), "1".to_owned(), json!({"id": 1, "divisor": divisor}), previous)
    };
    let wanted = [
        event("created", 5, json!({})),
        event("updated", 10, json!({"divisor": 5})),
        event("deleted", 10, json!({})),
    ];
    assert_eq!(found, wanted, "{why}");
}

async fn kept(connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("select sqlstate from postrider.capture_failures order by failure")
        .fetch_all(connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn without_the_right_to_insert_the_write_commits_and_is_recaptured() {
    for version in Version::ALL {
        // Rights do not bind a superuser: everything belongs to an ordinary owner.
        let database = postgres(version).await.unwrap().database(&Template::empty()).await.unwrap();
        let (name, owner) = (database.name(), format!("{}_owner", database.name()));
        let mut admin = database.connect().await.unwrap();
        execute(
            &mut admin,
            &format!("create role \"{owner}\" login; alter database \"{name}\" owner to \"{owner}\"; grant create on schema public to \"{owner}\""),
        )
        .await;
        let mut connection = PgConnection::connect(&database.url_as(&owner)).await.unwrap();
        let role = |role: &str| format!("{owner}_{role}");
        let roles = ["emit", "relay", "consume", "reader"].map(role);
        for role in &roles {
            execute(&mut admin, &format!("create role \"{role}\"")).await;
        }
        let [emit_role, relay_role, consume_role, reader_role] = roles.clone();
        let install = Install { emit_role, relay_role, consume_role, reader_role, ..Install::default() };
        schema::install(&mut connection, &install).await.unwrap();
        execute(&mut connection, ORDERS).await;
        let table = recording();
        capture::apply(&mut connection, std::slice::from_ref(&table), false).await.unwrap();

        let revoked = format!("revoke insert on postrider.events from \"{owner}\"");
        execute(&mut connection, &revoked).await;
        write(&mut connection).await;
        assert_eq!(kept(&mut connection).await, ["42501", "55000", "55000"], "{version}");
        let refused = capture::recapture(&mut connection, &table).await.unwrap();
        assert_eq!((refused.writes, refused.refused.unwrap().sqlstate.as_str()), (0, "42501"), "{version}");
        assert_eq!(kept(&mut connection).await.len(), 3, "{version}: what fails again is kept");

        let refusing = Table { on_failure: OnFailure::Refuse, ..table.clone() };
        execute(&mut connection, &revoked.replace("revoke", "grant").replace("from", "to")).await;
        assert_eq!(capture::recapture(&mut connection, &table).await.unwrap().writes, 3, "{version}");
        assert_written(&mut admin, &version.to_string()).await;
        assert_eq!(capture::recapture(&mut connection, &table).await.unwrap().writes, 0, "{version}");

        // The default: no event, no write.
        capture::apply(&mut connection, &[refusing], false).await.unwrap();
        execute(&mut connection, &revoked).await;
        let refused = sqlx::raw_sql("insert into orders values (2, 5)").execute(&mut connection).await;
        assert!(refused.unwrap_err().to_string().contains("permission denied"), "{version}");
        let rows: i64 =
            sqlx::query_scalar("select count(*) from orders").fetch_one(&mut connection).await.unwrap();
        assert_eq!(rows, 0, "{version}");

        connection.close().await.unwrap();
        for role in roles.iter().rev().chain([&owner]) {
            let gone = format!(
                "reassign owned by \"{role}\" to postgres; drop owned by \"{role}\" cascade; drop role \"{role}\""
            );
            execute(&mut admin, &gone).await;
        }
    }
}

#[tokio::test]
async fn with_a_full_tablespace_the_write_commits_and_is_recaptured() {
    let server = PostgresServer::private_with_small_disk(Version::default(), Settings::for_tests(), 1 << 20)
        .await
        .unwrap();
    let database = database_on(&server).await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        &format!("create tablespace small location '{}'", server.small_disk().display()),
    )
    .await;
    execute(
        &mut connection,
        "do $$ declare t regclass; begin
            for t in select c.oid from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relname like 'events\\__' loop
                execute format('alter table %s set tablespace small', t);
            end loop;
         end $$",
    )
    .await;
    execute(&mut connection, ORDERS).await;
    let table = recording();
    capture::apply(&mut connection, std::slice::from_ref(&table), false).await.unwrap();
    execute(&mut connection, "create table filler (t text) tablespace small").await;
    for size in [7000, 500, 1] {
        let more = format!("insert into filler select repeat('x', {size})");
        while sqlx::raw_sql(AssertSqlSafe(more.as_str())).execute(&mut connection).await.is_ok() {}
    }
    write(&mut connection).await;
    assert_eq!(kept(&mut connection).await, ["53100", "55000", "55000"]);
    execute(&mut connection, "drop table filler").await;
    assert_eq!(capture::recapture(&mut connection, &table).await.unwrap().writes, 3);
    assert_written(&mut connection, "a full tablespace").await;
    assert_eq!(capture::recapture(&mut connection, &table).await.unwrap().writes, 0);
}

#[tokio::test]
async fn with_an_expression_that_raises_the_write_commits_and_is_recaptured() {
    for version in Version::ALL {
        let broken = Table { tenant: Some("1 / (divisor - divisor)".to_owned()), ..recording() };
        let (_database, mut connection) =
            super::captured_on(version, ORDERS, std::slice::from_ref(&broken)).await;
        write(&mut connection).await;
        assert_eq!(kept(&mut connection).await, ["22012"; 3], "{version}");
        let refused = capture::recapture(&mut connection, &broken).await.unwrap();
        assert_eq!((refused.writes, refused.refused.unwrap().sqlstate.as_str()), (0, "22012"), "{version}");
        // What was written since comes first, and nothing of it twice.
        assert_eq!(events(&mut connection).await, [], "{version}");
        assert_eq!(capture::recapture(&mut connection, &recording()).await.unwrap().writes, 3, "{version}");
        assert_written(&mut connection, &version.to_string()).await;
        assert_eq!(capture::recapture(&mut connection, &recording()).await.unwrap().writes, 0, "{version}");
    }
}
