//! What is installed for adopted tables against what is declared.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::declaration::{Mode, Outbox};
use super::failure::{Error, Result};
use super::functions::{self, Called};
use super::generate::{self, APPEND, CLAIM};
use super::inspect::{self, grants};
use super::installed::{self, Found};
use super::mapping::Mapping;
use super::transfer;
use crate::capture::{self, Difference, Plan, Recorder, State, dollar_quoted, literal, on_partitions};

/// Compares the declarations with what is installed.
pub async fn plan(connection: &mut PgConnection, outboxes: &[Outbox]) -> Result<Plan> {
    compared(connection, outboxes, true).await
}

/// The same, by the catalogs alone unless it looks at the rows too.
pub(super) async fn compared(
    connection: &mut PgConnection,
    outboxes: &[Outbox],
    looks_inside: bool,
) -> Result<Plan> {
    let found = installed::triggers(connection).await?;
    let mut seen: BTreeMap<i64, &Outbox> = BTreeMap::new();
    let mut plan = Plan::default();
    let mut called = Vec::new();
    for outbox in outboxes {
        let mapping = Mapping::of(connection, outbox).await?;
        if let Some(first) = seen.insert(mapping.shape.oid, outbox) {
            return Err(Error::Twice { first: first.name.clone(), second: outbox.name.clone() });
        }
        let functions = functions::of(connection, outbox, &mapping).await?;
        plan.tables.push(adopted(connection, outbox, &mapping, &functions, &found, looks_inside).await?);
        called.extend(functions.into_iter().map(|function| function.signature));
    }
    let tables: Vec<i64> = seen.keys().copied().collect();
    if let Some((table, partition)) = capture::overlap(connection, &tables, &tables).await? {
        return Err(capture::Error::Overlap { table, partition }.into());
    }
    for found in found.iter().filter(|found| !found.inherited && !seen.contains_key(&found.relation)) {
        plan.tables.push(orphan(found));
    }
    if looks_inside {
        plan.tables.extend(functions::orphans(connection, &called).await?);
    }
    Ok(plan)
}

/// A trigger as it should be.
struct Wanted {
    trigger: &'static str,
    function: String,
    body: String,
}

async fn adopted(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
    functions: &[Called],
    found: &[Found],
    looks_inside: bool,
) -> Result<Difference> {
    let name = &mapping.shape.name;
    let ours: Vec<&Found> =
        found.iter().filter(|found| found.relation == mapping.shape.oid && !found.inherited).collect();
    let wanted = triggers(connection, outbox, mapping).await?;
    let mut state = if wanted.is_empty() && ours.is_empty() {
        State::Installed
    } else if ours.is_empty() {
        State::Missing
    } else {
        compare(&wanted, &ours, found)
    };
    // Where no row tells that it was taken, all that are there are, once.
    let takes = mapping.is_marked() || !was_adopted(connection, mapping, &ours).await?;
    let mut waiting = if looks_inside { waiting(connection, mapping).await? } else { Waiting::default() };
    // Nor would a mover know those that a trigger has taken.
    let would_repeat = !takes && outbox.mode == Mode::Poll;
    let repeated = if would_repeat { waiting.fit } else { 0 };
    if !takes {
        waiting.fit = 0;
    }
    let recorder = Recorder::of_outbox(&mapping.shape);
    let rule = recorder.found(connection).await?;
    let is_recorded = recorder.is(rule.as_ref());
    let mut statements = Vec::new();
    if !is_recorded {
        statements.push(recorder.make());
    }
    if would_repeat {
        statements.extend([lock(name), refuse_taken(name)]);
    }
    let take = functions::take(connection, outbox, mapping).await?;
    if state != State::Installed {
        statements.extend(replace(mapping, &wanted, &ours));
        if takes && !wanted.is_empty() {
            statements.extend(take);
        }
    } else if waiting.is_owed(outbox, mapping) {
        // Mended since, or come while the trigger was off.
        state = State::Outdated;
        statements.push(lock(name));
        statements.extend(take);
    }
    for (number, function) in functions.iter().enumerate() {
        let differs = functions::compare(connection, mapping, function).await?;
        if differs == State::Installed {
            continue;
        }
        statements.extend(functions::create(connection, mapping, function).await?);
        if state == State::Installed {
            // Where nothing is on the table, the mover is all there is.
            state = if wanted.is_empty() && number == 0 { differs } else { State::Outdated };
        }
    }
    let granted = grants(connection, outbox, mapping).await?;
    if state == State::Installed && !(granted.is_empty() && is_recorded) {
        state = State::Outdated;
    }
    statements.extend(granted);
    let mut reverse: Vec<String> = wanted
        .iter()
        .map(|wanted| format!("drop trigger if exists \"{}\" on {name}", wanted.trigger))
        .collect();
    reverse.extend(wanted.iter().map(|wanted| format!("drop function if exists {}()", wanted.function)));
    let called = functions.iter().filter(|function| function.body.is_some());
    reverse.extend(called.map(|function| format!("drop function if exists {}", function.signature)));
    reverse.push(recorder.back(rule.as_ref()));
    let mut notes = notes(outbox, mapping, state, &waiting);
    if !takes && matches!(state, State::Missing | State::Disabled) {
        notes.push(
            "nothing in a row tells that it was taken: rows that came while no trigger was on the table have to be inserted anew".to_owned(),
        );
    }
    if repeated > 0 {
        notes.push(format!(
            "{repeated} rows were taken by the trigger, and nothing in a row tells: delete them before, or by polling they would be taken again"
        ));
    }
    if looks_inside {
        let complaints = inspect::of_table(connection, outbox, mapping).await?;
        notes.extend(
            complaints.iter().map(|complaint| format!("{}: {}", complaint.problem, complaint.remedy)),
        );
    }
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

fn notes(outbox: &Outbox, mapping: &Mapping, state: State, waiting: &Waiting) -> Vec<String> {
    let mut notes = Vec::new();
    if waiting.unfit > 0 {
        notes.push(format!(
            "{} rows cannot become events and stay where they are, such as {}: mend them, or mark them as sent",
            waiting.unfit,
            waiting.example.as_deref().unwrap_or("one without an id")
        ));
    }
    if state == State::Installed {
        return notes;
    }
    if waiting.fit > 0 {
        notes.push(match outbox.mode {
            Mode::Trigger => format!("{} rows are not sent: they are taken first", waiting.fit),
            Mode::Poll => format!("{} rows are not sent: the relay takes them", waiting.fit),
        });
    }
    if state == State::Missing && mapping.claimed.is_none() {
        notes.push(
            "stop its old poller before: nothing in a row can tell it that the row is taken".to_owned(),
        );
    }
    let is_ordered = mapping.order.iter().any(|column| column.base_type != "uuid");
    if !is_ordered && (outbox.mode == Mode::Poll || waiting.fit > 0) {
        notes.push(
            "nothing says which row came first, a uuid does not: name a column that does with columns.order, or rows of one key may be taken in another order"
                .to_owned(),
        );
    }
    if !mapping.is_marked() && outbox.mode == Mode::Poll {
        notes.push(
            "nothing in a row can tell that it was sent: rows are deleted as they are taken".to_owned(),
        );
    }
    notes
}

async fn triggers(connection: &mut PgConnection, outbox: &Outbox, mapping: &Mapping) -> Result<Vec<Wanted>> {
    if outbox.mode == Mode::Poll {
        return Ok(Vec::new());
    }
    let mut wanted = vec![Wanted {
        trigger: APPEND,
        function: functions::name(connection, mapping, "append").await?,
        body: generate::append(mapping),
    }];
    if let Some(body) = generate::claim(mapping) {
        let function = functions::name(connection, mapping, "claim").await?;
        wanted.push(Wanted { trigger: CLAIM, function, body });
    }
    Ok(wanted)
}

fn compare(wanted: &[Wanted], ours: &[&Found], found: &[Found]) -> State {
    let is_same = |wanted: &Wanted| {
        ours.iter().any(|found| found.name == wanted.trigger && found.body == wanted.body && found.whole)
    };
    // On a partition it can be switched off alone.
    let is_ours = |found: &&Found| ours.iter().any(|ours| ours.function == found.function);
    if ours.len() != wanted.len() || !wanted.iter().all(is_same) {
        State::Outdated
    } else if found.iter().filter(is_ours).any(|found| !found.always) {
        State::Disabled
    } else {
        State::Installed
    }
}

/// Whether its rows were taken before. What remains of an adoption by polling are rows that were not.
async fn was_adopted(connection: &mut PgConnection, mapping: &Mapping, ours: &[&Found]) -> Result<bool> {
    let append = format!("{}()", functions::name(connection, mapping, "append").await?);
    let (looker, mover) =
        (functions::looker(connection, mapping).await?, functions::mover(connection, mapping).await?);
    let is_there: (bool, bool, bool) = sqlx::query_as(
        "select to_regprocedure($1) is not null, to_regprocedure($2) is not null, to_regprocedure($3) is not null",
    )
    .bind(append)
    .bind(looker)
    .bind(mover)
    .fetch_one(connection)
    .await?;
    Ok(!ours.is_empty() || !is_there.2 && (is_there.0 || is_there.1))
}

/// Rows that the trigger has taken are not taken again: they have to go before rows are moved by polling.
fn refuse_taken(name: &str) -> String {
    let message = format!(
        "postrider: rows of {name} were taken by the trigger, and nothing in a row tells: by polling they would be taken again"
    );
    let refused = format!(
        "
begin
    if exists (select from {name}) then
        raise exception using errcode = '55000', message = {}, hint = 'Delete them, and try again.';
    end if;
end
",
        literal(&message)
    );
    format!("do {}", dollar_quoted(&refused))
}

/// Also whoever has locked rows and not written yet: a poller in the middle of its batch.
fn lock(name: &str) -> String {
    format!("lock table {name} in exclusive mode")
}

/// The triggers anew. Behind them, under the same lock, come the rows that are there: nobody can write before, nothing is left out.
fn replace(mapping: &Mapping, wanted: &[Wanted], ours: &[&Found]) -> Vec<String> {
    let name = &mapping.shape.name;
    let mut statements = Vec::new();
    for wanted in wanted {
        let function = &wanted.function;
        statements.push(format!(
            "create or replace function {function}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp\nas {}",
            dollar_quoted(&wanted.body)
        ));
        statements.push(format!("revoke all on function {function}() from public"));
        statements.push(format!("alter function {function}() owner to current_user"));
        statements.push(functions::hand_over(&format!("{function}()"), name));
    }
    statements.push(lock(name));
    statements
        .extend(ours.iter().map(|found| format!("drop trigger if exists \"{}\" on {name}", found.name)));
    if wanted.is_empty() {
        // A function that is left over would pass for that of a trigger which somebody has dropped.
        statements.extend(ours.iter().map(|found| format!("drop function if exists {}", found.function)));
    }
    for wanted in wanted {
        let (trigger, function) = (wanted.trigger, &wanted.function);
        let when = if trigger == CLAIM { "before" } else { "after" };
        statements.push(format!("drop trigger if exists \"{trigger}\" on {name}"));
        statements.push(format!(
            "create trigger \"{trigger}\" {when} insert on {name} for each row execute function {function}()"
        ));
        statements.push(format!("alter table {name} enable always trigger \"{trigger}\""));
        if mapping.shape.partitioned {
            let enable = format!("'alter table %s enable always trigger \"{trigger}\"', part");
            statements.push(on_partitions(name, &[enable]));
        }
    }
    statements
}

fn orphan(found: &Found) -> Difference {
    Difference {
        table: found.relation_name.clone(),
        state: State::Orphaned,
        statements: vec![
            format!("drop trigger if exists \"{}\" on {}", found.name, found.relation_name),
            format!("drop function if exists {}", found.function),
        ],
        reverse: Vec::new(),
        notes: Vec::new(),
    }
}

/// Rows that are there, not sent and not in the log.
#[derive(Debug, Default)]
struct Waiting {
    fit: i64,
    /// Those that cannot be events, and the id of one.
    unfit: i64,
    example: Option<String>,
}

impl Waiting {
    /// Whether there is anything to take that no trigger will: where nothing tells of a row that it was taken, nobody knows.
    fn is_owed(&self, outbox: &Outbox, mapping: &Mapping) -> bool {
        outbox.mode == Mode::Trigger && mapping.is_marked() && self.fit > 0
    }
}

async fn waiting(connection: &mut PgConnection, mapping: &Mapping) -> Result<Waiting> {
    let asked = format!(
        "select count(*) filter (where {fit}) as fit, count(*) filter (where not ({fit})) as unfit,
                min(o.{id}::text) filter (where not ({fit})) as example
         from {name} o where {waiting}",
        fit = generate::fit(mapping, "o"),
        id = mapping.id.ident,
        name = mapping.shape.name,
        waiting = transfer::waiting(mapping, "o"),
    );
    let answer = capture::asked(connection, mapping.shape.oid, &asked).await?;
    let count = |field: &str| answer[field].as_i64().unwrap_or_default();
    let example = answer["example"].as_str().map(str::to_owned);
    Ok(Waiting { fit: count("fit"), unfit: count("unfit"), example })
}
