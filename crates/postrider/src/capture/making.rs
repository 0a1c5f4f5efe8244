//! Statements that make functions and switch triggers on.

use sqlx::PgConnection;

use super::declaration::Replicated;
use super::generate::literal;
use super::partitions::on_partitions;

/// Stands in a body with strings that another setting of the session's would change. `installed.sql` knows it.
pub(super) const PLAIN_STRINGS: &str = "    -- Strings are read as the standard has them.\n";

/// What the function of this body takes beside its search path. Each setting costs 4 µs a call: only where it is needed.
pub(super) fn settings_of(body: &str) -> &'static str {
    if body.contains(PLAIN_STRINGS) { " set standard_conforming_strings = on" } else { "" }
}

/// The function of a captured table's triggers.
pub(super) fn create_function(name: &str, body: &str) -> String {
    format!(
        "create or replace function {name}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp{}\nas {}",
        settings_of(body),
        dollar_quoted(body)
    )
}

/// The table's owner gets it: what the table's types and casts make it do, it does with his rights.
///
/// With the types that ours is declared with: whoever may install may create another of its name that fits a bare literal better.
pub(super) fn hand_over(function: &str, table: &str) -> String {
    format!(
        "select postrider.hand_over({}::pg_catalog.regprocedure, {}::pg_catalog.regclass)",
        literal(&format!("{function}()")),
        literal(table)
    )
}

/// How a trigger is switched on.
pub(super) fn enabling(replicated: Replicated) -> &'static str {
    if replicated == Replicated::Capture { "enable always" } else { "enable" }
}

/// Switches triggers of a table on.
pub(super) fn enable(name: &str, triggers: &[&str], replicated: Replicated) -> Vec<String> {
    let enable = enabling(replicated);
    triggers.iter().map(|trigger| format!("alter table {name} {enable} trigger \"{trigger}\"")).collect()
}

/// The same of every partition's, because not every version passes it on.
pub(super) fn enable_clones(name: &str, trigger: &str, replicated: Replicated) -> String {
    on_partitions(name, &[format!("'alter table %s {} trigger \"{trigger}\"', part", enabling(replicated))])
}

/// Unique for the table and the purpose, and readable.
pub(crate) async fn function_name(
    connection: &mut PgConnection,
    oid: i64,
    purpose: &str,
) -> sqlx::Result<String> {
    sqlx::query_scalar(include_str!("sql/function_name.sql"))
        .bind(oid)
        .bind(purpose)
        .fetch_one(connection)
        .await
}

/// The first of a table's functions that a relay must not call, as it would run with the relay's own rights: whoever may install can put
/// another one under its name before it is there, and its owner, if he may, can alter it.
pub(crate) async fn not_callable(
    connection: &mut PgConnection,
    signatures: &[String],
    table: i64,
) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar(include_str!("sql/callable.sql"))
        .bind(signatures)
        .bind(table)
        .fetch_optional(connection)
        .await
}

/// Between dollars that do not occur in it.
pub(crate) fn dollar_quoted(body: &str) -> String {
    let mut tag = "$postrider$".to_owned();
    while body.contains(&tag) {
        tag = format!("$postrider_{}$", tag.len());
    }
    format!("{tag}{body}{tag}")
}
