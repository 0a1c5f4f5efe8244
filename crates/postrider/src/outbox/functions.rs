//! The functions that relays call: they work with the rights of whoever owns the table, so a relay needs none to its rows.

use sqlx::PgConnection;

use super::declaration::Outbox;
use super::failure::Result;
use super::mapping::Mapping;
use super::{generate, installed, misfits};
use crate::capture::{self, Difference, State, dollar_quoted, literal, relay_roles};

/// A function as it should be.
pub(super) struct Called {
    /// Its name and the types of its arguments.
    pub(super) signature: String,
    /// `None`: there should be none.
    pub(super) body: Option<String>,
    /// On which the text of a row depends.
    settings: String,
}

/// Unique for the table and the purpose, and readable.
pub(super) async fn name(
    connection: &mut PgConnection,
    mapping: &Mapping,
    purpose: &str,
) -> Result<String, sqlx::Error> {
    capture::function_name(connection, mapping.shape.oid, purpose).await
}

/// That moves rows, of a keeper's uuid and their number.
pub(super) async fn mover(connection: &mut PgConnection, mapping: &Mapping) -> Result<String> {
    Ok(format!("{}(uuid,integer)", name(connection, mapping, "move").await?))
}

/// That looks for rows that cannot become events.
pub(super) async fn looker(connection: &mut PgConnection, mapping: &Mapping) -> Result<String> {
    Ok(format!("{}()", name(connection, mapping, "misfits").await?))
}

/// Those of a table.
pub(super) async fn of(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<Called>> {
    let settings: String = capture::json_settings(&mapping.others)
        .iter()
        .map(|(name, wanted)| format!(" set {name} = '{wanted}'"))
        .collect::<Vec<_>>()
        .concat();
    let looker = looker(connection, mapping).await?;
    Ok(vec![
        Called {
            signature: mover(connection, mapping).await?,
            body: generate::mover(outbox, mapping),
            settings,
        },
        Called {
            body: Some(misfits::body(outbox, mapping, &looker)),
            signature: looker,
            settings: String::new(),
        },
    ])
}

/// How what is there stands.
pub(super) async fn compare(connection: &mut PgConnection, wanted: &Called) -> Result<State> {
    let found = installed::body_of(connection, &wanted.signature).await?;
    Ok(match (&found, &wanted.body) {
        (None, Some(_)) => State::Missing,
        (Some(found), Some(body)) if found != body => State::Outdated,
        (Some(_), None) => State::Outdated,
        _ => State::Installed,
    })
}

/// What brings it to where it should be.
pub(super) async fn create(connection: &mut PgConnection, wanted: &Called) -> Result<Vec<String>> {
    let Called { signature, body, settings } = wanted;
    let Some(body) = body else { return Ok(vec![format!("drop function if exists {signature}")]) };
    let mut statements = vec![
        format!(
            "create or replace function {signature} returns bigint\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp{settings}\nas {}",
            dollar_quoted(body)
        ),
        format!("revoke all on function {signature} from public"),
    ];
    for role in relay_roles(connection).await? {
        statements.push(format!("grant execute on function {signature} to {}", role.ident));
    }
    Ok(statements)
}

/// One of a table that is not declared.
pub(super) fn orphan(signature: &str) -> Difference {
    Difference {
        table: signature.to_owned(),
        state: State::Orphaned,
        statements: vec![
            format!("drop function if exists {signature}"),
            format!("delete from postrider.misfits where found_by = {}", literal(signature)),
        ],
        reverse: Vec::new(),
        notes: vec!["this function is of an outbox table that is not declared".to_owned()],
    }
}
