//! Why `emit` is SECURITY DEFINER: on 18 `pg_sequence_last_value` answers null to a caller without rights, and says nothing.

use postrider_testkit::{Database, Version};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{database_of, heard, run};

/// A reader sleeps: its ticket can be seen for a minute.
async fn arm(connection: &mut PgConnection) {
    run(
        connection,
        "select nextval('postrider.armed'), setval('postrider.armed_until', (date_part('epoch', clock_timestamp()) + 60)::bigint)",
    )
    .await;
}

async fn application(database: &Database) -> (String, PgConnection) {
    let role = format!("{}_app", database.name());
    sqlx::raw_sql(AssertSqlSafe(format!(r#"create role "{role}" login; grant postrider_emit to "{role}""#)))
        .execute(&mut database.connect().await.unwrap())
        .await
        .unwrap();
    let connection = PgConnection::connect(&database.url_as(&role)).await.unwrap();
    (role, connection)
}

#[tokio::test]
async fn a_caller_without_rights_on_sequences_wakes_the_reader() {
    for version in [Version::V15, Version::V18] {
        let database = database_of(version).await;
        let mut admin = database.connect().await.unwrap();
        let (role, mut app) = application(&database).await;
        let mut listener = PgListener::connect(&database.url()).await.unwrap();
        listener.listen("postrider").await.unwrap();
        run(&mut app, "select postrider.emit('nobody sleeps', '{}')").await;
        assert_eq!(heard(&mut listener, &mut admin).await, Vec::<String>::new());
        arm(&mut admin).await;
        run(&mut app, "select postrider.emit('wake up', '{}')").await;
        assert_eq!(heard(&mut listener, &mut admin).await, ["1"], "{version}");
        run(&mut app, "select postrider.emit_many('[{\"type\": \"t\", \"payload\": 1}]')").await;
        assert_eq!(heard(&mut listener, &mut admin).await, ["1"], "{version}");

        // The mutant: the caller's own rights, and enough of them to write the row.
        let emit: String = sqlx::query_scalar(
            "select pg_get_functiondef('postrider.emit(text, text, text, text, text, text)'::regprocedure)",
        )
        .fetch_one(&mut admin)
        .await
        .unwrap();
        let mutant = emit.replace("SECURITY DEFINER", "SECURITY INVOKER");
        assert_ne!(mutant, emit);
        sqlx::raw_sql(AssertSqlSafe(mutant)).execute(&mut admin).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!(
            r#"grant insert on postrider.events to "{role}"; grant usage on sequence postrider.seq to "{role}";
               grant execute on all functions in schema postrider to "{role}""#
        )))
        .execute(&mut admin)
        .await
        .unwrap();
        let mut told = String::from("written");
        if let Err(error) = sqlx::query("select postrider.emit('wake up', '{}')").execute(&mut app).await {
            told = error.to_string();
        }
        let heard = heard(&mut listener, &mut admin).await;
        if version == Version::V18 {
            assert_eq!(told, "written");
            assert_eq!(heard, Vec::<String>::new(), "18 says nothing, and the reader sleeps on");
        } else {
            assert!(told.contains("permission denied for sequence"), "{version}: {told}");
        }
        drop(app);
        sqlx::raw_sql(AssertSqlSafe(format!(r#"drop owned by "{role}"; drop role "{role}""#)))
            .execute(&mut admin)
            .await
            .unwrap();
    }
}
