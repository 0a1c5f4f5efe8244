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
    for remedy in missing(connection, outbox, &mapping, &me).await? {
        let problem = format!("{user} lacks rights on {}; `postrider apply` grants them", mapping.shape.name);
        complaints.push(Complaint { problem, remedy: format!("{remedy};"), is_fatal: true });
    }
    Ok(complaints)
}

fn policy(role: &str) -> String {
    format!("\"postrider {}\"", role.replace('"', "\"\""))
}

/// Row security that hides rows from the owner of the functions that move and mark them.
pub(super) async fn security(connection: &mut PgConnection, mapping: &Mapping) -> Result<Option<Complaint>> {
    let looker = functions::looker(connection, mapping).await?;
    let (role, ident): (String, String) = sqlx::query_as(
        "select r.rolname::text, quote_ident(r.rolname) from pg_class c join pg_roles r
         on r.oid = coalesce((select p.proowner from pg_proc p where p.oid = to_regprocedure($2)), c.relowner) where c.oid = $1::bigint::oid",
    )
    .bind(mapping.shape.oid)
    .bind(looker)
    .fetch_one(&mut *connection)
    .await?;
    let is_hidden: bool = sqlx::query_scalar(include_str!("sql/hidden.sql"))
        .bind(mapping.shape.oid)
        .bind(&role)
        .fetch_one(connection)
        .await?;
    let name = &mapping.shape.name;
    Ok(is_hidden.then(|| Complaint {
        problem: format!(
            "row security hides rows of {name} from {role}, with whose rights they are moved and marked: they would never be sent, or never be marked"
        ),
        remedy: format!("create policy {} on {name} to {ident} using (true);", policy(&role)),
        is_fatal: false,
    }))
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
    // The server cannot do that to a partitioned table.
    let concurrently = if mapping.shape.partitioned { "" } else { " concurrently" };
    let mut complaints: Vec<Complaint> = security(connection, mapping).await?.into_iter().collect();
    // Also where nothing is marked: a row that is taken by polling is claimed or deleted by its id.
    if (mapping.has_lifecycle() || outbox.mode == Mode::Poll)
        && !indexes.iter().any(|(unique, first, _)| *unique && *first == mapping.id.name)
    {
        complaints.push(Complaint {
            problem: format!(
                "{name} has no unique index on {}: a row could not be told from others of its id",
                mapping.id.bare
            ),
            remedy: format!("create unique index{concurrently} on {name} ({});", mapping.id.bare),
            is_fatal: true,
        });
    }
    let Some(sent) = &mapping.sent else { return Ok(complaints) };
    if outbox.mode == Mode::Poll && !mapping.is_led_by_marks() && !indexes.iter().any(|(_, _, waits)| *waits)
    {
        let order: Vec<&str> = mapping.order.iter().map(|column| column.bare.as_str()).collect();
        let claimed =
            mapping.claimed.as_ref().map_or_else(String::new, |c| format!(" and {} is null", c.bare));
        complaints.push(Complaint {
            problem: format!(
                "{name} has no index of the rows that wait: every look for them reads the whole table"
            ),
            remedy: format!(
                "create index{concurrently} on {name} ({}) where {} is null{claimed};",
                order.join(", "),
                sent.bare
            ),
            is_fatal: false,
        });
    }
    if outbox.cleanup.is_some() && !indexes.iter().any(|(_, first, _)| *first == sent.name) {
        complaints.push(Complaint {
            problem: format!("{name} has no index on {}: every cleanup reads the whole table", sent.bare),
            remedy: format!("create index{concurrently} on {name} ({0}) where {0} is not null;", sent.bare),
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

/// Everything that a relay does to the table it does by functions; it needs no right on the table.
async fn missing(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
    role: &Role,
) -> Result<Vec<String>> {
    let mut statements = Vec::new();
    for function in functions::called_by_relays(connection, outbox, mapping).await? {
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
