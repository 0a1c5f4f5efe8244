//! Partitions: those that come and go with their rows, of which no trigger hears, and the TRUNCATE of a single one, of which no
//! trigger of its table does.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::declaration::{Replicated, Table};
use super::failure::Result;
use super::fence;
use super::found::{Found, TRUNCATE};
use super::generate::literal;
use super::making::{dollar_quoted, enabling, function_name, not_callable};
use super::roles::relay_roles;
use super::shape::Shape;

/// A partition that was attached since the trigger was installed brought rows without events, one that went took rows. One that was
/// created as a partition was empty, and is no news.
pub(super) async fn moved(connection: &mut PgConnection, shape: &Shape) -> Result<Vec<String>> {
    let found: Vec<(String, bool)> = sqlx::query_as(include_str!("sql/partitions_moved.sql"))
        .bind(shape.oid)
        .bind(&shape.name)
        .fetch_all(connection)
        .await?;
    let words = |(partition, came): (String, bool)| {
        if came {
            format!("the partition {partition} was attached: the rows it brought made no events")
        } else {
            format!("the partition {partition} was detached or dropped: the rows it took made no events")
        }
    };
    Ok(found.into_iter().map(words).collect())
}

/// Remembers those that were created as partitions, so that they are missed when they go.
pub(super) async fn learn(connection: &mut PgConnection, shape: &Shape) -> Result<()> {
    sqlx::query(include_str!("sql/partitions_born.sql"))
        .bind(shape.oid)
        .bind(&shape.name)
        .execute(connection)
        .await?;
    Ok(())
}

/// One of `tables` that has one of `others` among its partitions, and that partition.
pub(crate) async fn overlap(
    connection: &mut PgConnection,
    tables: &[i64],
    others: &[i64],
) -> Result<Option<(String, String)>> {
    Ok(sqlx::query_as(
        "select a.relid::text, o.oid::oid::regclass::text
         from unnest($2::bigint[]) o (oid)
         cross join pg_partition_ancestors(o.oid::oid::regclass) a
         where a.relid::oid::bigint <> o.oid and a.relid::oid::bigint = any ($1)
         limit 1",
    )
    .bind(tables)
    .bind(others)
    .fetch_optional(connection)
    .await?)
}

/// Executes statements for each partition, given as arguments of `format`; the partition is `part`.
pub(crate) fn on_partitions(name: &str, statements: &[String]) -> String {
    on_some(name, "true", statements)
}

/// The same, of those that can be truncated on every version: not for foreign tables.
fn on_own(name: &str, statements: &[String]) -> String {
    on_some(name, "c.relkind <> 'f'", statements)
}

fn on_some(name: &str, which: &str, statements: &[String]) -> String {
    let executed: Vec<String> =
        statements.iter().map(|statement| format!("        execute format({statement});\n")).collect();
    let body = format!(
        "\ndeclare\n    part regclass;\nbegin\n    for part in\n        select t.relid from pg_partition_tree({}) t join pg_class c on c.oid = t.relid where t.level > 0 and {which}\n    loop\n{}    end loop;\nend\n",
        literal(name),
        executed.concat()
    );
    format!("do {}", dollar_quoted(&body))
}

/// The function that puts the trigger for TRUNCATE on partitions that are new: row triggers come to them by themselves, this one does
/// not. Relays call it, with the rights of whoever owns the table. One that has lost it is left alone: that is an alarm.
pub(super) struct Watch {
    signature: String,
    body: String,
    is_there: bool,
    /// Partitions without the trigger.
    pub(super) unwatched: Vec<String>,
}

impl Watch {
    pub(super) async fn of(
        connection: &mut PgConnection,
        shape: &Shape,
        function: &str,
        replicated: Replicated,
        found: &[Found],
    ) -> Result<Self> {
        let signature = format!("{}()", function_name(connection, shape.oid, "watch").await?);
        let body = body(&shape.name, function, replicated);
        let there: Option<String> = sqlx::query_scalar(
            "select p.prosrc from pg_proc p join pg_class c on c.oid = $2::bigint::oid
             where p.oid = to_regprocedure($1) and p.prosecdef and pg_has_role(p.proowner, c.relowner, 'member')",
        )
        .bind(&signature)
        .bind(shape.oid)
        .fetch_optional(&mut *connection)
        .await?;
        let partitions: Vec<(i64, String)> = sqlx::query_as(
            "select c.oid::bigint, c.oid::regclass::text from pg_partition_tree($1::bigint::oid::regclass) t join pg_class c on c.oid = t.relid
             where t.level > 0 and c.relkind <> 'f' order by 2",
        )
        .bind(shape.oid)
        .fetch_all(&mut *connection)
        .await?;
        let is_watched = |oid: i64| found.iter().any(|found| found.relation == oid && found.name == TRUNCATE);
        let unwatched =
            partitions.into_iter().filter(|(oid, _)| !is_watched(*oid)).map(|(_, name)| name).collect();
        Ok(Self { is_there: there.as_deref() == Some(body.as_str()), signature, body, unwatched })
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_there && self.unwatched.is_empty()
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.unwatched.iter().map(|partition| {
            format!("the partition {partition} has no trigger for TRUNCATE: of one of it alone no event would tell")
        })
    }

    /// What brings it and the triggers to where they should be.
    pub(super) async fn statements(
        &self,
        connection: &mut PgConnection,
        name: &str,
        function: &str,
        replicated: Replicated,
    ) -> Result<Vec<String>> {
        let Self { signature, body, .. } = self;
        let [create, enable] = triggered(function, replicated);
        let dropped = format!("'drop trigger if exists \"{TRUNCATE}\" on %s', part");
        let mut statements = vec![
            on_own(name, &[dropped, create, enable]),
            // One that somebody else has put there before is his to alter, whatever it does now.
            format!("drop function if exists {signature}"),
            format!(
                "create function {signature} returns void\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set row_security = on set lock_timeout = '500ms'\nas {}",
                dollar_quoted(body)
            ),
            format!("revoke all on function {signature} from public"),
        ];
        for role in relay_roles(connection).await? {
            statements.push(format!("grant execute on function {signature} to {}", role.ident));
        }
        Ok(statements)
    }

    pub(super) fn reverse(&self) -> String {
        format!("drop function if exists {}", self.signature)
    }
}

/// Makes the trigger of a partition and switches it on: arguments of `format`.
fn triggered(function: &str, replicated: Replicated) -> [String; 2] {
    [
        format!(
            "'create trigger \"{TRUNCATE}\" before truncate on %s for each statement execute function %s()', part, {}",
            literal(function)
        ),
        format!("'alter table %s {} trigger \"{TRUNCATE}\"', part", enabling(replicated)),
    ]
}

fn body(name: &str, function: &str, replicated: Replicated) -> String {
    let name = literal(name);
    let [create, enable] = triggered(function, replicated);
    format!(
        "
declare
    part regclass;
begin
    for part in
        select t.relid from pg_partition_tree({name}) t join pg_class c on c.oid = t.relid
        where t.level > 0 and c.relkind <> 'f'
          and not exists (select from postrider.partitions p where p.parent = {name} and p.partition = t.relid::text)
          and not exists (select from pg_trigger g where g.tgrelid = t.relid and g.tgname = '{TRUNCATE}')
    loop
        execute format({create});
        execute format({enable});
    end loop;
end
"
    )
}

/// Takes the trigger for TRUNCATE from every partition.
pub(super) fn unwatch(name: &str) -> String {
    on_own(name, &[format!("'drop trigger if exists \"{TRUNCATE}\" on %s', part")])
}

/// Puts it on partitions that have come. What cannot be done, because somebody holds a lock or a right is missing, is found out
/// by whoever looks next.
pub(super) async fn watch(connection: &mut PgConnection, table: &Table) -> Result<()> {
    let Ok(shape) = Shape::of(connection, table).await else { return Ok(()) };
    if !shape.partitioned {
        return Ok(());
    }
    let signature = format!("{}()", function_name(connection, shape.oid, "watch").await?);
    if not_callable(connection, std::slice::from_ref(&signature), shape.oid).await?.is_some() {
        return Ok(());
    }
    let before = fence::names(connection).await?;
    let mut savepoint = connection.begin().await?;
    let called = format!("select {signature}");
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(called)).execute(&mut *savepoint).await {
        tracing::debug!(table = table.name, %error, "a new partition could not get its trigger");
        savepoint.rollback().await?;
    } else if fence::names(&mut savepoint).await? == before {
        savepoint.commit().await?;
    } else {
        // Whoever rolls back has the setting back.
        tracing::warn!(table = table.name, "what watches its partitions has set another search path");
        savepoint.rollback().await?;
    }
    Ok(())
}
