//! What is wrong with a table is said with the statement that mends it; a relay gets no right on it.

use std::time::Duration;

use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_testkit::Version;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::tables::insert;
use super::{count, declared, execute, keeper, read, with_table};
use crate::support::{database, database_of, open, reading};

/// Whatever is said mends it.
#[tokio::test]
async fn what_is_missing_is_named_with_what_mends_it() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table outbox (id bigint, event_id text, event_type text, entity_id text, payload xml, claimed_at timestamptz, processed_at text)",
    )
    .await;
    let declared = Outbox { cleanup: Some(Duration::from_hours(1)), ..declared(Preset::Plane, Mode::Poll) };
    for (problem, mended) in [("payload", "jsonb"), ("processed_at", "timestamptz")] {
        let refused =
            outbox::plan(&mut connection, std::slice::from_ref(&declared)).await.unwrap_err().to_string();
        assert!(refused.contains(problem) && refused.contains(mended), "{refused}");
        let remedy = refused.split_once(": alter table").unwrap().1;
        execute(&mut connection, &format!("alter table{remedy}")).await;
    }
    let complaints = outbox::inspect(&mut connection, &declared).await.unwrap();
    assert_eq!(
        complaints.iter().map(|c| c.is_fatal).collect::<Vec<_>>(),
        [true, false, false],
        "{complaints:?}"
    );
    for complaint in &complaints {
        execute(&mut connection, &complaint.remedy).await;
    }
    assert_eq!(outbox::inspect(&mut connection, &declared).await.unwrap(), []);
    let no_column = Outbox::new("public.outbox", Preset::OutboxEvents);
    let refused = outbox::plan(&mut connection, &[no_column]).await.unwrap_err().to_string();
    assert!(
        refused.contains("there is no column published_at") || refused.contains("there is no column"),
        "{refused}"
    );
    let nothing = Outbox::mapped("public.outbox", outbox::Columns::default());
    let refused = outbox::plan(&mut connection, &[nothing]).await.unwrap_err().to_string();
    assert!(refused.contains("nothing says which column has the id"), "{refused}");
}

/// Rows that are taken by polling are deleted by their id: two that share one would go together, and one of them unsent.
#[tokio::test]
async fn rows_that_share_an_id_are_not_taken_by_polling() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, "create table outbox (number bigint, topic text, body jsonb)").await;
    let column = |name: &str| Some(name.to_owned());
    let columns = outbox::Columns {
        id: column("number"),
        r#type: column("topic"),
        payload: column("body"),
        ..outbox::Columns::default()
    };
    let declared = Outbox { mode: Mode::Poll, ..Outbox::mapped("public.outbox", columns) };
    let complaints = outbox::inspect(&mut connection, &declared).await.unwrap();
    let fatal: Vec<_> = complaints.iter().filter(|complaint| complaint.is_fatal).collect();
    assert!(fatal.len() == 1 && fatal[0].remedy.contains("create unique index"), "{complaints:?}");
    execute(&mut connection, &fatal[0].remedy).await;
    let complaints = outbox::inspect(&mut connection, &declared).await.unwrap();
    assert!(complaints.iter().all(|complaint| !complaint.is_fatal), "{complaints:?}");
}

/// A relay with its role alone keeps the table, by functions: it sees nothing of it and changes nothing else.
#[tokio::test]
async fn fault_113_a_relay_keeps_a_table_on_which_it_has_no_right() {
    for mode in [Mode::Trigger, Mode::Poll] {
        let (database, mut connection) = with_table(Preset::Plane).await;
        let declared = Outbox { cleanup: Some(Duration::from_hours(1)), ..declared(Preset::Plane, mode) };
        let role = format!("{}_keeper", database.name());
        execute(&mut connection, &format!(r#"create role "{role}" login in role postrider_relay"#)).await;
        let options = database.url().parse::<sqlx::postgres::PgConnectOptions>().unwrap().username(&role);
        let mut relay = PgConnection::connect_with(&options).await.unwrap();
        let mut early = keeper(&mut relay, &declared).await;
        let refused = early.work(&mut relay).await.unwrap_err();
        assert!(matches!(refused, outbox::Error::NotCallable { .. }), "{refused}");
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        assert_eq!(outbox::inspect(&mut relay, &declared).await.unwrap(), []);
        execute(
            &mut connection,
            "revoke execute on function postrider_capture.misfits_public_outbox() from postrider_relay",
        )
        .await;
        let complaints = outbox::inspect(&mut relay, &declared).await.unwrap();
        assert!(
            complaints[0].is_fatal && complaints[0].remedy.starts_with("grant execute on function"),
            "{complaints:?}"
        );
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        insert(&mut connection, Preset::Plane, 1, "k").await;
        let mut reader = open(&database, reading("one")).await;
        let mut keeper = keeper(&mut relay, &declared).await;
        keeper.work(&mut relay).await.unwrap();
        read(&mut reader, 1).await;
        keeper.work(&mut relay).await.unwrap();
        assert_eq!(count(&mut connection, "select count(*) from outbox where processed_at is null").await, 0);
        for denied in [
            "select event_id from outbox",
            "update outbox set processed_at = now()",
            "delete from outbox",
            "insert into outbox default values",
            "truncate outbox",
        ] {
            let error = sqlx::raw_sql(AssertSqlSafe(denied)).execute(&mut relay).await.unwrap_err();
            assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("42501"), "{denied}");
        }
        keeper.close(&mut relay).await.unwrap();
        reader.close().await.unwrap();
        relay.close().await.unwrap();
        execute(&mut connection, &format!(r#"drop owned by "{role}"; drop role "{role}""#)).await;
    }
}

/// Names that SQL wants quoted, a schema that is not searched, partitions, and columns that nothing is known of.
#[tokio::test]
async fn fault_64_names_are_quoted_and_unknown_columns_are_headers() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        execute(
        &mut connection,
        r#"create schema "Ein ""Schema"""; create table "Ein ""Schema"""."Tab;le" (id bigint generated always as identity, topic text not null, key text,
               payload text not null, published_at timestamptz, "Tra'ce" jsonb, "when $$" timestamptz, nothing int, primary key (id)) "#,
    )
    .await;
        for mode in [Mode::Trigger, Mode::Poll] {
            let declared =
                Outbox { mode, ..Outbox::new(r#""Ein ""Schema"""."Tab;le""#, Preset::OutboxTopic) };
            outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
            execute(
            &mut connection,
            r#"set timezone = 'Asia/Tokyo'; insert into "Ein ""Schema"""."Tab;le" (topic, key, payload, "Tra'ce", "when $$")
               values ('t', 'k', 'not json', '{"a": null}', '2024-01-15T10:30:00Z')"#,
        )
        .await;
            let mut keeper = keeper(&mut connection, &declared).await;
            keeper.work(&mut connection).await.unwrap();
            let (payload, headers): (String, String) = sqlx::query_as(
                "select payload::text, headers::text from postrider.events order by seq desc limit 1",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap();
            assert_eq!(payload, r#""not json""#);
            let headers: serde_json::Value = serde_json::from_str(&headers).unwrap();
            assert_eq!(headers["Tra'ce"], serde_json::json!({"a": null}), "{version} {mode:?}");
            assert_eq!(headers["when $$"], "2024-01-15T10:30:00+00:00", "{version} {mode:?}");
            assert_eq!(headers.as_object().unwrap().len(), 3, "{headers}");
            keeper.close(&mut connection).await.unwrap();
        }
    }
}
