//! Expressions of a declaration, asked of the server: a function is not looked at before it is called.

use sqlx::{AssertSqlSafe, PgConnection};

use super::declaration::Table;
use super::failure::{Error, Result};
use super::shape::Shape;

/// Asks about every one, in the search path that the trigger will have.
pub(super) async fn check(connection: &mut PgConnection, table: &Table, shape: &Shape) -> Result<()> {
    let mut expressions: Vec<(String, &str)> = Vec::new();
    let one = |name: &str, expression: &'_ Option<String>| -> Option<(String, String)> {
        expression.as_ref().map(|expression| (name.to_owned(), expression.clone()))
    };
    let single = [one("type", &table.r#type), one("key", &table.key), one("tenant", &table.tenant)];
    for (name, expression) in single.iter().flatten() {
        expressions.push((name.clone(), expression));
    }
    expressions.extend(table.extra.iter().map(|(name, text)| (format!("extra.{name}"), text.as_str())));
    expressions.extend(table.headers.iter().map(|(name, text)| (format!("headers.{name}"), text.as_str())));
    let mut from = format!("(select (null::{}).*) as {}", shape.name, shape.alias);
    if let Some(parent) = &table.parent {
        expressions.insert(0, ("parent.by".to_owned(), &parent.on));
        from = format!("{from} cross join (select (null::{}).*) as parent", parent.table);
    }
    for (key, expression) in expressions {
        // In the extended protocol, which takes one statement: what closes the bracket and goes on is refused.
        let asked = format!("select ({expression}\n)::text from {from} limit 0");
        let answer =
            sqlx::query(AssertSqlSafe(asked)).persistent(false).fetch_optional(&mut *connection).await;
        if let Err(sqlx::Error::Database(error)) = answer {
            let hint = match error.code().as_deref() {
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

/// The columns of the primary key, one behind the other.
pub(super) fn primary_key(shape: &Shape) -> Option<String> {
    let columns: Vec<String> = shape
        .columns
        .iter()
        .filter(|column| column.in_key)
        .map(|column| format!("{}::text", column.ident))
        .collect();
    (!columns.is_empty()).then(|| columns.join(" || ':' || "))
}

/// Whether the expression may speak of that column. Once too often does no harm.
pub(super) fn mentions(expression: &str, column: &str) -> bool {
    expression.to_lowercase().contains(&column.to_lowercase())
}
