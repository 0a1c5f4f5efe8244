//! Events that could not be recorded when they happened.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::failure::Result;
use super::generate::{self, literal};
use super::plan::{as_triggers_see, dollar_quoted};
use super::shape::Shape;

/// Records what is kept of this table, in the order it happened, in one transaction; how many writes it was.
pub async fn recapture(connection: &mut PgConnection, table: &Table) -> Result<u64> {
    let mut transaction = connection.begin().await?;
    as_triggers_see(&mut transaction).await?;
    let count = within(&mut transaction, table).await?;
    transaction.commit().await?;
    Ok(count)
}

/// The same in the caller's transaction, which sees names as triggers do.
pub(super) async fn within(connection: &mut PgConnection, table: &Table) -> Result<u64> {
    const OURS: &str =
        "select count(*) from postrider.capture_failures where to_regclass(relation)::oid::bigint = any ($1)";
    let shape = Shape::of(connection, table).await?;
    // A row's failure is that of the partition it is in.
    let relations: Vec<i64> = sqlx::query_scalar(
        "select $1::bigint union select relid::oid::bigint from pg_partition_tree($1::bigint::oid::regclass)",
    )
    .bind(shape.oid)
    .fetch_all(&mut *connection)
    .await?;
    let count: i64 = sqlx::query_scalar(OURS).bind(&relations).fetch_one(&mut *connection).await?;
    if count == 0 {
        return Ok(0);
    }
    let name = &shape.name;
    let body = dollar_quoted(&generate::again(table, &shape)?);
    let oids = relations.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let everything = dollar_quoted(&format!(
        "
declare
    failure record;
    setting record;
begin
    for failure in
        select * from postrider.capture_failures where to_regclass(relation)::oid in ({oids}) order by failure
    loop
        for setting in select * from json_each_text(failure.context) loop
            perform set_config(setting.key, coalesce(setting.value, ''), true);
        end loop;
        perform pg_temp.postrider_recapture(failure.operation,
            case when failure.operation = 'TRUNCATE' then to_regclass(failure.relation) else {table}::regclass end,
            json_populate_record(null::{name}, failure.old_row), json_populate_record(null::{name}, failure.new_row));
        delete from postrider.capture_failures f where f.failure = failure.failure;
    end loop;
end
",
        table = literal(name),
    ));
    let statements = [
        format!(
            "create function pg_temp.postrider_recapture(tg_op text, tg_relid oid, old {name}, new {name}) returns text language plpgsql as {body}"
        ),
        format!("do {everything}"),
        format!("drop function pg_temp.postrider_recapture(text, oid, {name}, {name})"),
    ];
    for statement in statements {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
    }
    Ok(count.unsigned_abs())
}
