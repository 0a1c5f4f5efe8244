//! The triggers of ours that there are.

use sqlx::{PgConnection, Row};

use super::declaration::Replicated;
use super::failure::Result;
use super::generate::TRIGGER;
use super::shape::Shape;

/// On every captured table, for each row.
pub(super) const ROWS: &str = TRIGGER;
/// On every captured table, for a TRUNCATE.
pub(super) const TRUNCATE: &str = "00_postrider_truncate";
/// On the parents of captured tables.
pub(super) const DEPARTED: &str = "00_postrider_departed";

/// A trigger of ours, as it stands.
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub(super) struct Found {
    pub(super) relation: i64,
    pub(super) relation_name: String,
    pub(super) name: String,
    enabled: u8,
    pub(super) inherited: bool,
    /// Whether it is made as we make it.
    pub(super) is_whole: bool,
    /// Whether its function belongs to the table's owner and has the search path and the rights that it was given.
    pub(super) is_safe: bool,
    /// Whether the owner of its function is let to record.
    pub(super) may_record: bool,
    pub(super) body: String,
    pub(super) function: String,
    pub(super) definition: String,
    pub(super) function_definition: String,
}

impl Found {
    /// Whether it fires when it should.
    pub(super) fn fires(&self, replicated: Replicated) -> bool {
        self.enabled == if replicated == Replicated::Capture { b'A' } else { b'O' }
    }

    /// Whether it has a name of ours.
    fn is_ours(&self) -> bool {
        [ROWS, TRUNCATE, DEPARTED].contains(&self.name.as_str())
    }

    /// Its name, quoted.
    pub(super) fn ident(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }

    /// Whether it does not fire in ordinary sessions.
    pub(super) fn is_off(&self) -> bool {
        !matches!(self.enabled, b'A' | b'O')
    }
}

/// All of them, whatever is declared.
pub(super) async fn installed(connection: &mut PgConnection) -> Result<Vec<Found>> {
    let rows = sqlx::query(include_str!("sql/installed.sql")).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Found {
                relation: row.try_get("relation")?,
                relation_name: row.try_get("relation_name")?,
                name: row.try_get("name")?,
                enabled: row.try_get::<i8, _>("enabled")?.cast_unsigned(),
                inherited: row.try_get("inherited")?,
                is_whole: row.try_get("is_whole")?,
                is_safe: row.try_get::<Option<bool>, _>("is_safe")?.unwrap_or_default(),
                may_record: row.try_get("may_record")?,
                body: row.try_get("body")?,
                function: row.try_get("function")?,
                definition: row.try_get("definition")?,
                function_definition: row.try_get("function_definition")?,
            })
        })
        .collect()
}

/// Triggers for TRUNCATE on tables that were partitions of this one: a detached partition loses all its other triggers.
pub(super) fn strays<'a>(shape: &Shape, found: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    let ours = found.iter().find(|found| found.relation == shape.oid && found.name == ROWS);
    let function = ours.filter(|_| shape.partitioned).map(|ours| ours.function.clone());
    let oid = shape.oid;
    found.iter().filter(move |one| {
        function.as_ref() == Some(&one.function)
            && one.name == TRUNCATE
            && one.relation != oid
            && !one.inherited
            && !found.iter().any(|other| other.relation == one.relation && other.name == ROWS)
    })
}

/// Triggers on this table that call its function under another name: every change would be recorded again.
pub(super) fn doubles<'a>(shape: &Shape, found: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    let oid = shape.oid;
    found.iter().filter(move |one| {
        one.relation == oid && !one.inherited && !one.is_ours() && one.function.contains("capture_")
    })
}
