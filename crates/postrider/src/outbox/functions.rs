//! The functions that relays call, and the one that takes the rows that are there. They belong to the table's owner, so that a relay needs
//! no right to its rows, and the table's triggers and casts get none of who runs `apply`.

use sqlx::PgConnection;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::mapping::Mapping;
use super::{generate, installed, marks, misfits, transfer};
use crate::capture::{self, Difference, Recorder, State, dollar_quoted, literal, relay_roles};

/// A function as it should be.
pub(super) struct Called {
    /// Its name and the types of its arguments.
    pub(super) signature: String,
    /// `None`: there should be none.
    pub(super) body: Option<String>,
    /// On which the text of a row depends, and that of its id.
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

/// That does to rows what a relay has to.
pub(super) async fn marker(connection: &mut PgConnection, mapping: &Mapping) -> Result<String> {
    Ok(format!("{}({})", name(connection, mapping, "keep").await?, marks::ARGUMENTS))
}

/// Those of a table.
pub(super) async fn of(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<Called>> {
    let looker = looker(connection, mapping).await?;
    Ok(vec![
        Called {
            signature: mover(connection, mapping).await?,
            body: transfer::mover(outbox, mapping),
            settings: settings(mapping),
        },
        Called {
            body: Some(misfits::body(outbox, mapping, &looker)),
            signature: looker,
            settings: settings(mapping),
        },
        Called {
            signature: marker(connection, mapping).await?,
            body: marks::body(outbox, mapping),
            settings: settings(mapping),
        },
    ])
}

/// Those of them that should be there.
pub(super) async fn called_by_relays(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<String>> {
    let functions = of(connection, outbox, mapping).await?;
    Ok(functions
        .into_iter()
        .filter(|function| function.body.is_some())
        .map(|function| function.signature)
        .collect())
}

/// What a call answers, between what names meant before it and behind it.
pub(super) type Answer = (String, Option<i64>, String);

/// A call as columns of that kind.
pub(super) fn called(call: &str) -> String {
    let names = "current_setting('search_path')";
    format!("{names}, {call}, {names}")
}

/// The answer; 0 where nothing was called. What the owner has set there outlives the function, and names that have come to mean something
/// else would lend the rights of the relay to him.
pub(super) fn answered(table: &str, (before, answer, after): Answer) -> Result<i64> {
    if before == after {
        Ok(answer.unwrap_or_default())
    } else {
        Err(Error::Names { table: table.to_owned() })
    }
}

/// What takes the rows that are there and not in the log: a function that is called once.
///
/// It is the owner's while it runs, and what he does there could outlive it: names must mean afterwards what they meant before.
pub(super) async fn take(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<Vec<String>> {
    let signature = format!("{}()", name(connection, mapping, "take").await?);
    let mut statements = made(mapping, &signature, &transfer::taker(outbox, mapping), &settings(mapping));
    let called = format!(
        "
declare
    was constant pg_catalog.text := pg_catalog.current_setting('search_path');
begin
    perform {signature};
    if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) was then
        raise exception using errcode = '42501', message = 'a function of the table''s owner has set another search path',
            hint = 'Look at the triggers of the table, and the casts and functions that they and its columns use.';
    end if;
end
"
    );
    statements.push(format!("do {}", dollar_quoted(&called)));
    statements.push(format!("drop function {signature}"));
    Ok(statements)
}

/// On which the text of a row depends.
fn settings(mapping: &Mapping) -> String {
    let settings = generate::settings(mapping);
    settings.iter().map(|(name, wanted)| format!(" set {name} = '{wanted}'")).collect::<Vec<_>>().concat()
}

/// What makes a function, and gives it to the table's owner. Anew: one that somebody else has put there before would stay his, or called by
/// whom he has let. Its statements are planned for each call: tables that were empty when a session was new are large when it matters.
fn made(mapping: &Mapping, signature: &str, body: &str, settings: &str) -> Vec<String> {
    vec![
        format!("drop function if exists {signature}"),
        format!(
            "create function {signature} returns bigint\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set row_security = on set plan_cache_mode = force_custom_plan{settings}\nas {}",
            dollar_quoted(body)
        ),
        format!("revoke all on function {signature} from public"),
        hand_over(signature, &mapping.shape.name),
    ]
}

/// What the table's triggers and types make it do is done with the rights of the table's owner, not with all rights.
pub(super) fn hand_over(signature: &str, table: &str) -> String {
    format!(
        "select postrider.hand_over({}::pg_catalog.regprocedure, {}::pg_catalog.regclass) where pg_catalog.current_setting('is_superuser') operator(pg_catalog.=) 'on'::pg_catalog.text",
        literal(signature),
        literal(table)
    )
}

/// How what is there stands.
pub(super) async fn compare(
    connection: &mut PgConnection,
    mapping: &Mapping,
    wanted: &Called,
) -> Result<State> {
    let found = installed::body_of(connection, &wanted.signature, mapping.shape.oid).await?;
    Ok(match (&found, &wanted.body) {
        (None, Some(_)) => State::Missing,
        (Some((found, is_safe)), Some(body)) if found != body || !is_safe => State::Outdated,
        (Some(_), None) => State::Outdated,
        _ => State::Installed,
    })
}

/// What brings it to where it should be.
pub(super) async fn create(
    connection: &mut PgConnection,
    mapping: &Mapping,
    wanted: &Called,
) -> Result<Vec<String>> {
    let Called { signature, body, settings } = wanted;
    let Some(body) = body else { return Ok(vec![format!("drop function if exists {signature}")]) };
    let mut statements = made(mapping, signature, body, settings);
    for role in relay_roles(connection).await? {
        statements.push(format!("grant execute on function {signature} to {}", role.ident));
    }
    Ok(statements)
}

/// Those of tables that are not declared, each with what such a table records by.
pub(super) async fn orphans(connection: &mut PgConnection, declared: &[String]) -> Result<Vec<Difference>> {
    let mut orphans: Vec<Difference> = installed::functions(connection)
        .await?
        .iter()
        .filter(|function| !declared.contains(function))
        .map(|function| orphan(function))
        .collect();
    if orphans.is_empty() {
        return Ok(orphans);
    }
    for (recorder, table) in Recorder::of_outboxes(connection).await? {
        let looker = format!("{}()", capture::function_name(connection, table, "misfits").await?);
        if let Some(orphan) = orphans.iter_mut().find(|orphan| orphan.table == looker) {
            orphan.statements.push(recorder.back(None));
            orphan.reverse.push(recorder.make());
        }
    }
    Ok(orphans)
}

/// One of them.
fn orphan(signature: &str) -> Difference {
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
