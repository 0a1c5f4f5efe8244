//! `assert_emitted`, when it fails.

use anyhow::Result;
use postrider::{Expected, assert_emitted, emit_many};
use serde_json::json;
use sqlx::Connection as _;

use super::event;
use crate::support;

#[tokio::test]
async fn a_failed_assertion_lists_what_was_emitted_instead() -> Result<()> {
    let database = support::database().await;
    let mut connection = database.connect().await?;
    let panicked = tokio::spawn(async move {
        let mut tx = connection.begin().await?;
        let others = [event("order.paid", 8).tenant("acme"), event("order.sent", 7)];
        emit_many(&mut tx, &others).await?;
        let expected = Expected::new("order.paid").key(7).payload(&json!({"order": 7}));
        anyhow::Ok((line!(), assert_emitted(&mut tx, expected).await))
    });
    let line = line!() - 2;
    let panic = panicked.await.unwrap_err().into_panic();
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    let place = format!("producer/assertions.rs:{line}:");
    assert!(message.starts_with("no such event was emitted, at ") && message.contains(&place), "{message}");
    let list = r#"
expected:
  order.paid key="7" payload={"order":7}
emitted:
  order.paid key="8" tenant="acme" payload={"order":8}
  order.sent key="7" payload={"order":7}"#;
    assert!(message.ends_with(list), "{message}");
    Ok(())
}

#[tokio::test]
#[should_panic(expected = "emitted:\n  nothing")]
async fn a_failed_assertion_says_that_nothing_was_emitted() {
    let database = support::database().await;
    let mut connection = database.connect().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    assert_emitted(&mut tx, Expected::new("order.paid")).await;
}
