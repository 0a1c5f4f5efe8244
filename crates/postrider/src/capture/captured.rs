//! The triggers of one captured table: how they stand, and what brings them to where they should be.

use sqlx::PgConnection;

use super::declaration::Table;
use super::difference::{Difference, State};
use super::failure::Result;
use super::found::{Found, ROWS, TRUNCATE, doubles, strays};
use super::generate::literal;
use super::making::{create_function, enable, enable_clones, function_name, hand_over};
use super::partitions::{self, Watch};
use super::recorder::Recorder;
use super::shape::Shape;

/// The row and the truncate trigger of one table.
pub(super) async fn captured(
    connection: &mut PgConnection,
    table: &Table,
    shape: &Shape,
    body: &str,
    found: &[Found],
) -> Result<Difference> {
    let replicated = table.replicated;
    let recorder = Recorder::of(table, shape);
    let rule = recorder.found(connection).await?;
    let function = function_name(connection, shape.oid, "capture").await?;
    let name = &shape.name;
    let ours: Vec<&Found> = found
        .iter()
        .filter(|found| found.relation == shape.oid && (found.name == ROWS || found.name == TRUNCATE))
        .collect();
    let state = match ours.as_slice() {
        [] => State::Missing,
        [one] if one.name == TRUNCATE => State::Missing,
        some if some.iter().any(|found| !found.is_whole) => State::Disabled,
        [_] => State::Outdated,
        both if both.iter().any(|found| found.body != body || !found.is_safe || !found.may_record) => {
            State::Outdated
        }
        _ if !recorder.is(rule.as_ref()) => State::Outdated,
        both if both.iter().any(|found| !found.fires(replicated)) => State::Disabled,
        _ => State::Installed,
    };
    let partitions_off = found.iter().any(|found| {
        found.inherited
            && !found.fires(replicated)
            && found.function == ours.first().map_or("", |ours| &ours.function)
    });
    let state = if state == State::Installed && partitions_off { State::Disabled } else { state };
    let doubles: Vec<&Found> = doubles(shape, found).collect();
    let mut notes = remarks(shape, &function, &ours, &doubles);
    // Of a table that was never captured none is missed.
    let is_watching = shape.partitioned && state != State::Missing;
    let moved = if is_watching { partitions::moved(connection, shape).await? } else { Vec::new() };
    notes.extend(moved.iter().cloned());
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(create_function(&function, body));
        statements.push(format!("revoke all on function {function}() from public"));
        statements.push(hand_over(&function, name));
        statements.push(recorder.make());
        statements.push(format!("drop trigger if exists \"{ROWS}\" on {name}"));
        statements.push(format!("drop trigger if exists \"{TRUNCATE}\" on {name}"));
        statements.push(format!(
            "create trigger \"{ROWS}\" after insert or update or delete on {name} for each row execute function {function}()"
        ));
        statements.push(format!(
            "create trigger \"{TRUNCATE}\" before truncate on {name} for each statement execute function {function}()"
        ));
        statements.extend(enable(name, &[ROWS, TRUNCATE], replicated));
    }
    let mut undone = Vec::new();
    let mut is_watched = true;
    if shape.partitioned {
        let watch = Watch::of(connection, shape, &function, replicated, found).await?;
        is_watched = watch.is_done();
        // Every one is new to a table that is new.
        notes.extend(watch.notes().filter(|_| state != State::Missing));
        if state != State::Installed {
            statements.push(enable_clones(name, ROWS, replicated));
        }
        if state != State::Installed || !is_watched {
            statements.extend(watch.statements(connection, name, &function, replicated).await?);
        }
        undone = vec![partitions::unwatch(name), watch.reverse()];
    }
    let strays: Vec<&Found> = strays(shape, found).collect();
    statements.extend(
        strays
            .iter()
            .map(|stray| format!("drop trigger if exists \"{TRUNCATE}\" on {}", stray.relation_name)),
    );
    statements
        .extend(doubles.iter().map(|double| format!("drop trigger if exists {} on {name}", double.ident())));
    if shape.partitioned && (state != State::Installed || !is_watched || !moved.is_empty()) {
        statements.push(format!("select postrider.note_partitions({}::pg_catalog.regclass)", literal(name)));
    }
    let is_outdated = !moved.is_empty() || !is_watched || !strays.is_empty() || !doubles.is_empty();
    let state = if state == State::Installed && is_outdated { State::Outdated } else { state };
    let reverse = if let Some(before) = ours.first() {
        vec![recorder.back(rule.as_ref()), create_function(&function, &before.body)]
    } else {
        undone.extend([
            format!("drop trigger if exists \"{ROWS}\" on {name}"),
            format!("drop trigger if exists \"{TRUNCATE}\" on {name}"),
            format!("drop function if exists {function}()"),
            recorder.back(None),
        ]);
        undone
    };
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

/// What is to be said of the triggers that are there, and of the table.
fn remarks(shape: &Shape, function: &str, ours: &[&Found], doubles: &[&Found]) -> Vec<String> {
    let mut notes = Vec::new();
    if let [one] = ours {
        let other = if one.name == ROWS { TRUNCATE } else { ROWS };
        notes.push(format!("the trigger \"{other}\" is gone"));
    }
    for changed in ours.iter().filter(|found| !found.is_whole) {
        let Found { name, definition, .. } = changed;
        notes.push(format!(
            "the trigger \"{name}\" was changed by hand and does not fire for every change: {definition}"
        ));
    }
    if ours.iter().any(|found| !found.is_safe) {
        notes.push(format!(
            "the function {function}() has not the owner, the rights or the search path that it was given"
        ));
    }
    if ours.iter().any(|found| !found.may_record) {
        notes.push(format!(
            "the owner of the function {function}() is not let to record events, and no write gets through"
        ));
    }
    for double in doubles {
        notes.push(format!("the trigger {} records every change once more", double.ident()));
    }
    if shape.unlogged {
        notes.push("it is unlogged: a crash empties it, and no event tells of that".to_owned());
    }
    notes
}
