//! What the developer is told about an event that was not written.

use std::error::Error;

use anyhow::Result;
use postrider::{EmitError, Refusal, emit, emit_many};
use postrider_testkit::Template;
use sqlx::Connection as _;

use super::{client, committed, event};
use crate::support;

/// What the server said, if the driver's error `D` is still behind it.
fn refusal<D: Error + 'static>(error: &EmitError) -> &Refusal {
    match error {
        EmitError::Refused { refusal, source } if source.is::<D>() => refusal,
        _ => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn what_the_server_says_about_a_bad_event_is_kept() -> Result<()> {
    let database = support::database().await;
    let mut client = client(&database.url()).await?;
    let mut tx = client.transaction().await?;
    let error = emit(&mut tx, &event("", 1)).await.unwrap_err();
    tx.commit().await?;
    assert_eq!(error.sqlstate(), Some("22023"));
    assert_eq!(refusal::<tokio_postgres::Error>(&error).sqlstate, "22023");
    assert_eq!(
        error.to_string(),
        "postrider: the type of an event must not be empty (SQLSTATE 22023)\n\
         DETAIL: Nothing was written.\n\
         HINT: Name what happened, for example 'order.paid'."
    );

    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let events = [event("fine", 1), event("order.paid", 1).key("k".repeat(1025))];
    let error = emit_many(&mut tx, &events).await.unwrap_err();
    tx.commit().await?;
    let said = refusal::<sqlx::Error>(&error);
    assert_eq!(said.sqlstate, "54000");
    assert_eq!(said.message, "postrider: event 'order.paid' is over a limit (event 2 of emit_many)");
    let detail = "Its key is 1025 bytes long, 1024 are allowed. Nothing was written.";
    assert_eq!(said.detail.as_deref(), Some(detail));
    assert!(said.hint.as_deref().is_some_and(|hint| hint.starts_with("Shorten it")));
    assert!(committed(&database).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_missing_schema_and_a_missing_right_have_a_next_step() -> Result<()> {
    let database = support::database().await;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let stranger = "set local role pg_monitor";
    sqlx::query(stranger).execute(&mut *tx).await?;
    let text = emit(&mut tx, &event("order.paid", 1)).await.unwrap_err().to_string();
    let hint = "(SQLSTATE 42501)\nHINT: Let an administrator run: grant postrider_emit to <your role>.";
    assert!(text.ends_with(hint), "{text}");

    let empty = database.server().database(&Template::empty()).await?;
    let mut connection = empty.connect().await?;
    let text = emit(&mut connection, &event("order.paid", 1)).await.unwrap_err().to_string();
    let hint = "(SQLSTATE 3F000)\nHINT: Install the schema in this database with `postrider init`.";
    assert!(text.ends_with(hint), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_lost_connection_is_not_a_refusal() -> Result<()> {
    let database = support::database().await;
    let mut client = client(&database.url()).await?;
    let mut tx = client.transaction().await?;
    let kill = "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    sqlx::query(kill).execute(&mut database.connect().await?).await?;
    // The server's farewell may or may not have been read; what follows it is a closed connection.
    let first = emit(&mut tx, &event("order.paid", 1)).await.unwrap_err();
    assert!(matches!(first.sqlstate(), None | Some("57P01")), "{first}");
    let second = emit(&mut tx, &event("order.paid", 1)).await.unwrap_err();
    assert!(matches!(&second, EmitError::Driver(source) if source.is::<tokio_postgres::Error>()));
    assert_eq!(second.to_string(), "the event could not be sent to the database: connection closed");
    Ok(())
}
