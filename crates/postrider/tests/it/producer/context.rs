//! What events inherit from their transaction, and for how long.

use anyhow::{Context as _, Result};
use postrider::{Context, EmitError, Transaction, emit, emitted};
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::{client, committed, event};
use crate::support;

#[tokio::test]
async fn a_context_ends_with_its_transaction_and_gives_way_to_headers() -> Result<()> {
    let database = support::database().await;
    let pool = database.pool(1).await?;
    let mut tx = pool.begin().await?;
    let context = Context::new().set("initiator", "user-7").set("trace", json!({"id": 1}));
    context.apply(&mut tx).await?;
    emit(&mut tx, &event("a", 1).header("initiator", "batch")).await?;
    Context::new().set("trace", None::<i64>).apply(&mut tx).await?;
    emit(&mut tx, &event("b", 1)).await?;
    tx.commit().await?;

    let mut tx = pool.begin().await?;
    emit(&mut tx, &event("c", 1)).await?;
    emit(&mut tx, &event("d", 1).header("only", true)).await?;
    tx.commit().await?;

    let mut headers: Vec<Value> = Vec::new();
    for row in committed(&database).await? {
        headers.push(serde_json::from_str(row.headers.as_deref().unwrap_or("null"))?);
    }
    let first = json!({"initiator": "batch", "trace": {"id": 1}});
    assert_eq!(headers, [first, json!({"initiator": "user-7"}), json!(null), json!({"only": true})]);
    Ok(())
}

/// A null takes an entry out; one inside an entry is part of its value.
#[tokio::test]
async fn only_a_null_entry_is_taken_out() -> Result<()> {
    let database = support::database().await;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let nested = json!({"id": null, "parent": {"id": null}, "list": [null]});
    Context::new().set("initiator", "user-7").set("trace", nested.clone()).apply(&mut tx).await?;
    Context::new().set("initiator", None::<i64>).set("nobody", None::<i64>).apply(&mut tx).await?;
    emit(&mut tx, &event("a", 1)).await?;
    emit(&mut tx, &event("b", 1).header("own", json!({"x": null}))).await?;
    let headers: Vec<Value> = emitted(&mut tx).await?.into_iter().map(|event| json!(event.headers)).collect();
    assert_eq!(headers, [json!({"trace": nested}), json!({"trace": nested, "own": {"x": null}})]);
    Ok(())
}

#[tokio::test]
async fn a_scope_restores_the_context_whatever_happens() -> Result<()> {
    let database = support::database().await;
    scopes(&mut database.connect().await?.begin().await?).await?;
    scopes(&mut client(&database.url()).await?.transaction().await?).await
}

async fn scopes<T: Transaction>(tx: &mut T) -> Result<()> {
    let outer = Context::new().set("initiator", "outer");
    let inner = Context::new().set("initiator", "inner");
    let seen = outer
        .scope(tx, async |tx| {
            let before = initiator(tx).await?;
            let inside = inner.scope(tx, async |tx| initiator(tx).await).await?;
            anyhow::Ok([before, inside, initiator(tx).await?])
        })
        .await?;
    assert_eq!(seen, ["outer", "inner", "outer"]);
    assert_eq!(initiator(tx).await?, "nobody");

    outer.apply(tx).await?;
    let failed: Result<()> = inner.scope(tx, async |_| anyhow::bail!("no stock")).await;
    assert_eq!(failed.expect_err("no stock").to_string(), "no stock");
    assert_eq!(initiator(tx).await?, "outer");

    // An error that aborts the transaction comes through, not the failure to restore after it.
    let bad: Result<_, EmitError> = inner.scope(tx, async |tx| emit(tx, &event("", 1)).await).await;
    assert_eq!(bad.expect_err("no type").sqlstate(), Some("22023"));
    Ok(())
}

#[tokio::test]
async fn rolling_back_to_a_savepoint_restores_the_context() -> Result<()> {
    let database = support::database().await;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Context::new().set("initiator", "outer").apply(&mut tx).await?;
    let mut savepoint = tx.begin().await?;
    let inner = Context::new().set("initiator", "inner");
    inner.apply(&mut savepoint).await?;
    assert_eq!(initiator(&mut savepoint).await?, "inner");
    savepoint.rollback().await?;
    assert_eq!(initiator(&mut tx).await?, "outer");
    assert_eq!(emitted(&mut tx).await?.len(), 1, "the savepoint's event is gone");
    Ok(())
}

/// The initiator that an event gets now.
async fn initiator<T: Transaction>(tx: &mut T) -> Result<String> {
    emit(tx, &event("probe", 1)).await?;
    let probe = emitted(tx).await?.pop().context("one at least")?;
    let initiator = probe.headers.get("initiator").and_then(Value::as_str);
    Ok(initiator.unwrap_or("nobody").to_owned())
}
