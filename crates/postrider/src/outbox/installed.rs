//! What is there of ours for outbox tables.

use sqlx::{PgConnection, Row};

use super::failure::Result;

/// A trigger of ours, as it stands.
pub(super) struct Found {
    pub(super) relation: i64,
    pub(super) relation_name: String,
    pub(super) name: String,
    pub(super) always: bool,
    /// For every row that is inserted, at the right moment, and its function with the rights it needs.
    pub(super) whole: bool,
    /// Of a partition, made by the one of its table.
    pub(super) inherited: bool,
    pub(super) body: String,
    pub(super) function: String,
}

pub(super) async fn triggers(connection: &mut PgConnection) -> Result<Vec<Found>> {
    let rows = sqlx::query(include_str!("sql/installed.sql")).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Found {
                relation: row.try_get("relation")?,
                relation_name: row.try_get("relation_name")?,
                name: row.try_get("name")?,
                whole: row.try_get("is_whole")?,
                always: row.try_get("is_always")?,
                inherited: row.try_get("is_inherited")?,
                body: row.try_get("body")?,
                function: row.try_get("function")?,
            })
        })
        .collect()
}

/// The functions that relays call, of any table.
pub(super) async fn functions(connection: &mut PgConnection) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar(
        "select format('postrider_capture.%I(%s)', p.proname, array_to_string(p.proargtypes::oid[]::regtype[], ','))
         from pg_proc p
         where p.pronamespace = 'postrider_capture'::regnamespace and (p.proname ^@ 'move_' or p.proname ^@ 'misfits_' or p.proname ^@ 'keep_')
         order by 1",
    )
    .fetch_all(connection)
    .await?)
}

/// What a function does, if it is there, and whether it does so with the rights of its owner and nobody else's names. That is the table's, or a
/// member, and not somebody who may do anything, unless the table is his.
pub(super) async fn body_of(
    connection: &mut PgConnection,
    function: &str,
    table: i64,
) -> Result<Option<(String, bool)>> {
    Ok(sqlx::query_as(
        "select p.prosrc, p.prosecdef and coalesce(p.proconfig @> array['search_path=pg_catalog, pg_temp', 'plan_cache_mode=force_custom_plan'], false)
                and pg_has_role(p.proowner, c.relowner, 'member') and (not o.rolsuper or c.relowner = p.proowner)
                -- He is let to record: REASSIGN OWNED gives away no rights.
                and has_schema_privilege(p.proowner, 'postrider', 'usage') and exists (
                    select from pg_proc k
                    where k.pronamespace = 'postrider'::regnamespace and k.proname = 'hold_keeper' and has_function_privilege(p.proowner, k.oid, 'execute'))
         from pg_proc p join pg_roles o on o.oid = p.proowner join pg_class c on c.oid = $2::bigint::oid where p.oid = to_regprocedure($1)",
    )
    .bind(function)
    .bind(table)
    .fetch_optional(connection)
    .await?)
}
