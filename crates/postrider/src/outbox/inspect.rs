//! What is wrong with an adopted table, each with the statement that mends it.

use sqlx::{PgConnection, Row};

use super::declaration::{Mode, Outbox};
use super::failure::Result;
use super::functions;
use super::mapping::Mapping;
use crate::capture::{Role, relay_roles};

/// Something that is wrong with a table, and the statement that mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// In words.
    pub problem: String,
    /// SQL.
    pub remedy: String,
    /// Whether nothing goes on before it is mended.
    pub is_fatal: bool,
}

/// Looks at an adopted table with the rights of whoever asks: a relay, before it begins.
pub async fn inspect(connection: &mut PgConnection, outbox: &Outbox) -> Result<Vec<Complaint>> {
    let mapping = Mapping::of(connection, outbox).await?;
    let mut complaints = of_table(connection, outbox, &mapping).await?;
    let (user, ident): (String, String) =
        sqlx::query_as("select current_user::text, quote_ident(current_user)")
            .fetch_one(&mut *connection)
            .await?;
    let me = Role { name: user.clone(), ident };
    complaints.extend(hidden(connection, &mapping, &[&me]).await?);
    complaints.dedup();
    for remedy in missing(connection, outbox, &mapping, &me).await? {
        let problem = format!("{user} lacks rights on {}; `postrider apply` grants them", mapping.shape.name);
        complaints.push(Complaint { problem, remedy: format!("{remedy};"), is_fatal: true });
    }
    Ok(complaints)
}

/// Row security that hides rows from a role which is to move or to mark them.
async fn hidden(connection: &mut PgConnection, mapping: &Mapping, roles: &[&Role]) -> Result<Vec<Complaint>> {
    let name = &mapping.shape.name;
    let mut complaints = Vec::new();
    for role in roles {
        let is_hidden: bool = sqlx::query_scalar(include_str!("sql/hidden.sql"))
            .bind(mapping.shape.oid)
            .bind(&role.name)
            .fetch_one(&mut *connection)
            .await?;
        if is_hidden {
            complaints.push(Complaint {
                problem: format!(
                    "row security hides rows of {name} from {}, which moves or marks them: they would never be sent, or never be marked",
                    role.name
                ),
                remedy: format!("create policy {} on {name} to {} using (true);", policy(&role.name), role.ident),
                is_fatal: false,
            });
        }
    }
    Ok(complaints)
}

fn policy(role: &str) -> String {
    format!("\"postrider {}\"", role.replace('"', "\"\""))
}

/// The same of every role that relays run as, and of the owner of their functions.
pub(super) async fn security(connection: &mut PgConnection, mapping: &Mapping) -> Result<Vec<Complaint>> {
    let looker = functions::looker(connection, mapping).await?;
    let (name, ident): (String, String) = sqlx::query_as(
        "select r.rolname::text, quote_ident(r.rolname) from pg_class c join pg_roles r
         on r.oid = coalesce((select p.proowner from pg_proc p where p.oid = to_regprocedure($2)), c.relowner) where c.oid = $1::bigint::oid",
    )
    .bind(mapping.shape.oid)
    .bind(looker)
    .fetch_one(&mut *connection)
    .await?;
    let mut roles = vec![Role { name, ident }];
    if mapping.has_lifecycle() {
        roles.extend(relay_roles(connection).await?);
    }
    hidden(connection, mapping, &roles.iter().collect::<Vec<_>>()).await
}

/// Row security in the way, and indexes without which it becomes slow as the table grows.
pub(super) async fn of_table(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<Complaint>> {
    let name = &mapping.shape.name;
    let rows = sqlx::query(
        "select i.indisunique and (i.indnkeyatts = 1 or $2) and i.indpred is null as is_unique,
                (select a.attname::text from pg_attribute a where a.attrelid = i.indrelid and a.attnum = i.indkey[0]) as first,
                coalesce(position(quote_ident($3) || ' IS NULL' in pg_get_expr(i.indpred, i.indrelid)) > 0, false) as waits
         from pg_index i where i.indrelid = $1::bigint::oid and i.indisvalid",
    )
    .bind(mapping.shape.oid)
    // There it has to have the columns of the partitioning too.
    .bind(mapping.shape.partitioned)
    .bind(mapping.sent.as_ref().map(|sent| &sent.name))
    .fetch_all(&mut *connection)
    .await?;
    let indexes = rows
        .iter()
        .map(|row| {
            Ok((row.try_get(0)?, row.try_get::<Option<String>, _>(1)?.unwrap_or_default(), row.try_get(2)?))
        })
        .collect::<Result<Vec<(bool, String, bool)>, sqlx::Error>>()?;
    let mut complaints = security(connection, mapping).await?;
    if mapping.has_lifecycle()
        && !indexes.iter().any(|(unique, first, _)| *unique && *first == mapping.id.name)
    {
        complaints.push(Complaint {
            problem: format!(
                "{name} has no unique index on {}: a row's event could not be found again",
                mapping.id.bare
            ),
            remedy: format!("create unique index concurrently on {name} ({});", mapping.id.bare),
            is_fatal: true,
        });
    }
    let Some(sent) = &mapping.sent else { return Ok(complaints) };
    if outbox.mode == Mode::Poll && !indexes.iter().any(|(_, _, waits)| *waits) {
        let order: Vec<&str> = mapping.order.iter().map(|column| column.bare.as_str()).collect();
        let claimed =
            mapping.claimed.as_ref().map_or_else(String::new, |c| format!(" and {} is null", c.bare));
        complaints.push(Complaint {
            problem: format!(
                "{name} has no index of the rows that wait: every look for them reads the whole table"
            ),
            remedy: format!(
                "create index concurrently on {name} ({}) where {} is null{claimed};",
                order.join(", "),
                sent.bare
            ),
            is_fatal: false,
        });
    }
    if outbox.cleanup.is_some() && !indexes.iter().any(|(_, first, _)| *first == sent.name) {
        complaints.push(Complaint {
            problem: format!("{name} has no index on {}: every cleanup reads the whole table", sent.bare),
            remedy: format!("create index concurrently on {name} ({0}) where {0} is not null;", sent.bare),
            is_fatal: false,
        });
    }
    Ok(complaints)
}

/// What relays lack on the table.
pub(super) async fn grants(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<String>> {
    let mut statements = Vec::new();
    for role in relay_roles(connection).await? {
        statements.extend(missing(connection, outbox, mapping, &role).await?);
    }
    Ok(statements)
}

/// The columns a relay reads and writes, and nothing else.
fn needed(outbox: &Outbox, mapping: &Mapping) -> (Vec<String>, Vec<String>) {
    let mut select = vec![mapping.id.name.clone()];
    let mut update = Vec::new();
    for column in [&mapping.sent, &mapping.attempts, &mapping.last_error].into_iter().flatten() {
        update.push(column.name.clone());
    }
    select.extend(mapping.sent.iter().map(|sent| sent.name.clone()));
    // By which it knows a row from an earlier one of the same id.
    select.extend(mapping.created.iter().map(|created| created.name.clone()));
    if outbox.mode == Mode::Poll {
        select.extend(mapping.claimed.iter().map(|claimed| claimed.name.clone()));
        update.extend(mapping.claimed.iter().map(|claimed| claimed.name.clone()));
    }
    (select, update)
}

async fn missing(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
    role: &Role,
) -> Result<Vec<String>> {
    let mut statements = Vec::new();
    if mapping.has_lifecycle() {
        let (select, update) = needed(outbox, mapping);
        let usage: Option<String> = sqlx::query_scalar(
            "select format('grant usage on schema %I to %I', n.nspname, $2)
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where c.oid = $1::bigint::oid and not has_schema_privilege($2, n.oid, 'usage')",
        )
        .bind(mapping.shape.oid)
        .bind(&role.name)
        .fetch_optional(&mut *connection)
        .await?;
        statements.extend(usage);
        let rights: Option<String> = sqlx::query_scalar(include_str!("sql/rights.sql"))
            .bind(mapping.shape.oid)
            .bind(&role.name)
            .bind(&select)
            .bind(&update)
            .bind(outbox.cleanup.is_some() && mapping.sent.is_some())
            .fetch_one(&mut *connection)
            .await?;
        statements.extend(
            rights.map(|rights| format!("grant {rights} on {} to {}", mapping.shape.name, role.ident)),
        );
    }
    let mut called = vec![functions::looker(connection, mapping).await?];
    if outbox.mode == Mode::Poll {
        called.push(functions::mover(connection, mapping).await?);
    }
    for function in called {
        let lacks: bool = sqlx::query_scalar(
            "select coalesce(not has_function_privilege($1, to_regprocedure($2)::oid, 'execute'), false)",
        )
        .bind(&role.name)
        .bind(&function)
        .fetch_one(&mut *connection)
        .await?;
        if lacks {
            statements.push(format!("grant execute on function {function} to {}", role.ident));
        }
    }
    Ok(statements)
}
