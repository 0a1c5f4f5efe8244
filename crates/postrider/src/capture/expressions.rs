//! Expressions of a declaration, asked of the server: a function is not looked at before it is called.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, PgConnection};

use super::declaration::Table;
use super::failure::{Error, Result};
use super::fence::Fence;
use super::making::dollar_quoted;
use super::shape::{Column, Shape};

/// Every expression of a declaration, with its key there: first the one that others may depend on.
pub(super) fn declared<'a>(table: &'a Table) -> Vec<(String, &'a str)> {
    let mut expressions = Vec::new();
    let mut add = |key: &str, expression: Option<&'a str>| {
        expressions.extend(expression.map(|expression| (key.to_owned(), expression)));
    };
    add("parent.by", table.parent.as_ref().map(|parent| parent.on.as_str()));
    add("type", table.r#type.as_deref());
    add("key", table.key.as_deref());
    add("tenant", table.tenant.as_deref());
    expressions.extend(table.extra.iter().map(|(name, text)| (format!("extra.{name}"), text.as_str())));
    expressions.extend(table.headers.iter().map(|(name, text)| (format!("headers.{name}"), text.as_str())));
    expressions
}

/// Asks about every one, in the search path that the trigger will have.
///
/// With the rights of the table's owner, where whoever asks could do anything: a type may bring a cast along, and a plan of it may
/// call that.
pub(super) async fn check(connection: &mut PgConnection, table: &Table, shape: &Shape) -> Result<()> {
    let fence = Fence::around(connection, shape.oid).await?;
    ask(connection, table, shape, fence.as_ref()).await
}

/// Gives a function of this session to the table's owner, where whoever made it could do anything: what the table's types and casts
/// make it do, it does with his rights, as the trigger does. Whoever could not is the owner, or one of its members.
pub(super) async fn hand_over(connection: &mut PgConnection, function: &str, table: i64) -> Result<()> {
    sqlx::query(
        "select postrider.hand_over($1::text::regprocedure, $2::bigint::oid::regclass) where current_setting('is_superuser') = 'on'",
    )
    .bind(function)
    .bind(table)
    .execute(connection)
    .await?;
    Ok(())
}

async fn ask(
    connection: &mut PgConnection,
    table: &Table,
    shape: &Shape,
    fence: Option<&Fence>,
) -> Result<()> {
    let mut from = format!("(select (null::{}).*) as {}", shape.name, shape.alias);
    if let Some(parent) = &table.parent {
        from = format!("{from} cross join (select (null::{}).*) as parent", parent.table);
    }
    for (key, expression) in declared(table) {
        let asked = format!("select ({expression}\n)::text from {from} limit 0");
        let mut answer = queried(connection, &asked, fence).await.map_err(|error| (error, ""));
        if answer.is_ok() {
            // Then as the trigger has it.
            answer = executed(connection, &within(shape, expression), fence).await.map_err(|error| {
                (error, "; a trigger has the columns of a row, each by its name, and takes one value of them")
            });
        }
        if let Err((sqlx::Error::Database(error), hint)) = answer {
            let hint = match error.code().as_deref() {
                _ if !hint.is_empty() => hint,
                Some("42P01") => "; another table must be named with its schema",
                Some("42702") => "; put the table's name before the column",
                _ => "",
            };
            return Err(Error::Expression {
                table: table.name.clone(),
                key,
                expression: expression.to_owned(),
                reason: error.message().to_owned(),
                hint,
            });
        }
    }
    Ok(())
}

/// One query and no more: what closes the bracket and goes on is refused, by the extended protocol or by a loop.
async fn queried(
    connection: &mut PgConnection,
    query: &str,
    fence: Option<&Fence>,
) -> Result<(), sqlx::Error> {
    if let Some(fence) = fence {
        let looped = format!("for found_row in execute {} loop end loop;", dollar_quoted(query));
        return fence.run(connection, &looped).await;
    }
    sqlx::query(AssertSqlSafe(query.to_owned())).persistent(false).fetch_optional(connection).await?;
    Ok(())
}

async fn executed(
    connection: &mut PgConnection,
    statement: &str,
    fence: Option<&Fence>,
) -> Result<(), sqlx::Error> {
    if let Some(fence) = fence {
        return fence.run(connection, &format!("execute {};", dollar_quoted(statement))).await;
    }
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await?;
    Ok(())
}

/// A block that has the names which an expression has in the trigger, and looks at it without a value of anything.
fn within(shape: &Shape, expression: &str) -> String {
    let mut columns = String::new();
    for column in shape.columns.iter().filter(|column| mentions(&[expression], column)) {
        // Of the type below a domain, which may not take null.
        let _ = writeln!(columns, "{} {};", column.ident, column.base_type);
    }
    let parent =
        shape.parent.as_ref().map_or_else(String::new, |parent| format!("parent {};\n", parent.name));
    let body = format!(
        "\n#variable_conflict use_column\ndeclare\n{parent}begin\n<<{}>>\ndeclare\n{columns}begin\nperform where false and ({expression}\n)::text is null;\nend;\nend\n",
        shape.alias
    );
    format!("do {}", dollar_quoted(&body))
}

/// The columns of the primary key of the row that counts, one behind the other.
///
/// What may have a colon in it has it masked, where there are several: `1:2` and `3` are not `1` and `2:3`.
pub(super) fn primary_key(shape: &Shape) -> Option<String> {
    const WITHOUT: [&str; 12] = [
        "smallint",
        "integer",
        "bigint",
        "oid",
        "numeric",
        "boolean",
        "uuid",
        "date",
        "time without time zone",
        "timestamp without time zone",
        "timestamp with time zone",
        "bytea",
    ];
    let keys: Vec<&Column> = shape.columns.iter().filter(|column| column.in_key).collect();
    let columns: Vec<String> = keys
        .iter()
        .map(|column| {
            let text = format!("captured.{}::text", column.ident);
            if keys.len() == 1 || WITHOUT.contains(&column.base_type.as_str()) {
                text
            } else {
                format!("replace(replace({text}, E'\\\\', E'\\\\\\\\'), ':', E'\\\\:')")
            }
        })
        .collect();
    (!columns.is_empty()).then(|| columns.join(" || ':' || "))
}

/// Whether one of the expressions may speak of that column. Once too often does no harm.
pub(crate) fn mentions(expressions: &[&str], column: &Column) -> bool {
    let name = column.name.to_lowercase();
    let quoted = name.replace('"', "\"\"");
    expressions.iter().any(|expression| {
        let expression = expression.to_lowercase();
        // Between quotes a character may stand as its number.
        expression.contains(&name) || expression.contains(&quoted) || expression.contains("u&\"")
    })
}
