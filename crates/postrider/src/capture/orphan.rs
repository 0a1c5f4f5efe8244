//! A trigger of ours on a table that is not declared.

use super::difference::{Difference, State};
use super::found::{DEPARTED, Found};
use super::partitions;
use super::recorder::Recorder;

/// With what it records by, and what that lets through.
pub(super) fn orphan(one: &Found, found: &[Found], recorder: Option<(Recorder, String)>) -> Difference {
    let (name, table) = (&one.name, &one.relation_name);
    let mut statements = Vec::new();
    // With the last trigger of a table goes its function; that of a detached partition is its table's.
    let is_shared = found
        .iter()
        .any(|other| other.function == one.function && other.relation != one.relation && !other.inherited);
    let is_last = found
        .iter()
        .rfind(|other| other.function == one.function && other.relation == one.relation && !other.inherited)
        .is_some_and(|last| last.name == one.name);
    let goes = is_last && !is_shared;
    if goes
        && one.name != DEPARTED
        && found.iter().any(|other| other.function == one.function && other.inherited)
    {
        statements.push(partitions::unwatch(table));
    }
    let ident = one.ident();
    statements.push(format!("drop trigger if exists {ident} on {table}"));
    if goes {
        statements.push(format!("drop function if exists {}", one.function));
        statements
            .push(format!("drop function if exists {}", one.function.replacen("capture_", "watch_", 1)));
    }
    let mut reverse = Vec::new();
    if let Some((recorder, rule)) = recorder.filter(|_| goes && one.name != DEPARTED) {
        statements.push(recorder.back(None));
        reverse.push(recorder.back(Some(&rule)));
    }
    reverse.extend([
        one.function_definition.trim_end().to_owned(),
        one.definition.clone(),
        format!("alter table {table} enable always trigger {ident}"),
    ]);
    Difference {
        table: table.clone(),
        state: State::Orphaned,
        statements,
        reverse,
        notes: vec![format!("its trigger \"{name}\" is of a table that is not declared")],
    }
}
