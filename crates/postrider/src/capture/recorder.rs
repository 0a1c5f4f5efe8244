//! The function by which a table comes into the log: only its owner may call it, and what it may record is written into it. The log's
//! owner makes it, of what is noted in `postrider.recorders`.

use serde_json::json;
use sqlx::PgConnection;

use super::declaration::Table;
use super::failure::Result;
use super::generate::literal;
use super::shape::Shape;

/// That of one table.
pub(crate) struct Recorder {
    /// With its schema.
    pub(crate) function: String,
    purpose: &'static str,
    /// With its schema, quoted.
    table: String,
    oid: i64,
    rule: String,
}

impl Recorder {
    /// Of a captured table.
    pub(super) fn of(table: &Table, shape: &Shape) -> Self {
        let rule = json!({ "entity": table.entity, "types": types(table) });
        Self::new(shape, "record", rule.to_string())
    }

    /// Of an adopted one: what its events are is said by its rows.
    pub(crate) fn of_outbox(shape: &Shape) -> Self {
        Self::new(shape, "adopt", json!({ "outbox": shape.name }).to_string())
    }

    /// Of a table that is not declared, if there is one, and what it lets through.
    pub(super) async fn of_orphan(
        connection: &mut PgConnection,
        table: &str,
    ) -> Result<Option<(Self, String)>> {
        let Ok(shape) = Shape::of(connection, &Table::new(table, "")).await else { return Ok(None) };
        let recorder = Self::new(&shape, "record", String::new());
        Ok(recorder.found(connection).await?.map(|rule| (recorder, rule)))
    }

    /// Those of all adopted tables that are there, each with the table.
    pub(crate) async fn of_outboxes(connection: &mut PgConnection) -> Result<Vec<(Self, i64)>> {
        let tables: Vec<String> = sqlx::query_scalar(
            "select distinct obj_description(p.oid, 'pg_proc')::json ->> 'outbox' from pg_proc p
             where p.pronamespace = 'postrider'::regnamespace and p.proname ^@ 'adopt_' and obj_description(p.oid, 'pg_proc') ^@ '{\"outbox\"'",
        )
        .fetch_all(&mut *connection)
        .await?;
        let mut recorders = Vec::new();
        for table in tables {
            if let Ok(shape) = Shape::of(connection, &Table::new(table, "")).await {
                recorders.push((Self::of_outbox(&shape), shape.oid));
            }
        }
        Ok(recorders)
    }

    fn new(shape: &Shape, purpose: &'static str, rule: String) -> Self {
        Self {
            function: format!("postrider.{purpose}_{}", shape.recorder),
            purpose,
            table: shape.name.clone(),
            oid: shape.oid,
            rule,
        }
    }

    /// What it lets through as it is.
    pub(crate) async fn found(&self, connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
        sqlx::query_scalar(include_str!("sql/recorder.sql"))
            .bind(self.oid)
            .bind(self.function.trim_start_matches("postrider."))
            .fetch_optional(connection)
            .await
            .map(Option::flatten)
    }

    /// Whether it is that which it should be.
    pub(crate) fn is(&self, found: Option<&String>) -> bool {
        found == Some(&self.rule)
    }

    /// What makes it.
    pub(crate) fn make(&self) -> String {
        self.back(Some(&self.rule))
    }

    /// What makes it as it was.
    pub(crate) fn back(&self, rule: Option<&String>) -> String {
        lets(&self.table, self.purpose, rule)
    }
}

/// With the types that ours is declared with, as everything that we call.
fn lets(table: &str, purpose: &str, rule: Option<&String>) -> String {
    let rule = rule.map_or_else(|| "null".to_owned(), |rule| literal(rule));
    format!(
        "select postrider.let_record({}::pg_catalog.regclass, '{purpose}'::pg_catalog.text, {rule}::pg_catalog.json)",
        literal(table)
    )
}

/// Every type that its events can have; `None` where that depends on the row.
fn types(table: &Table) -> Option<Vec<String>> {
    if table.r#type.is_some() {
        return None;
    }
    let verbs = &table.verbs;
    let of_rows =
        [&verbs.insert, &verbs.update, &verbs.delete, &verbs.restore, &verbs.purge, &verbs.snapshot];
    let verbs = of_rows.into_iter().flatten().chain(table.changes.values().map(|change| &change.verb));
    let verbs = verbs.map(String::as_str).chain(["truncated", "partition.truncated"]);
    Some(verbs.map(|verb| format!("{}.{verb}", table.entity)).collect())
}
