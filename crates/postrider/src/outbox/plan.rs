//! What is installed for adopted tables against what is declared.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::declaration::{Mode, Outbox};
use super::failure::{Error, Result};
use super::generate::{self, APPEND, CLAIM};
use super::inspect::{self, Complaint, grants};
use super::mapping::{Mapping, moment};
use crate::capture::{self, Alarm, State, dollar_quoted};

/// One adopted table of a plan.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The table, quoted, with its schema.
    pub table: String,
    /// How what is installed for it stands.
    pub state: State,
    /// What brings it to where it should be, in order.
    pub statements: Vec<String>,
    /// What takes that back.
    pub reverse: Vec<String>,
    /// What is wrong with the table itself.
    pub complaints: Vec<Complaint>,
    /// Rows that are there and not sent: taken first when it is applied.
    pub waiting: i64,
    /// What a person must know besides.
    pub notes: Vec<String>,
}

impl From<Difference> for capture::Difference {
    fn from(difference: Difference) -> Self {
        let Difference { table, state, statements, reverse, complaints, notes, .. } = difference;
        let complaints =
            complaints.into_iter().map(|complaint| format!("{}: {}", complaint.problem, complaint.remedy));
        Self { table, state, statements, reverse, notes: notes.into_iter().chain(complaints).collect() }
    }
}

/// What is installed against what is declared.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Declared tables, then orphans.
    pub tables: Vec<Difference>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.tables.iter().all(|table| table.state == State::Installed)
    }
}

struct Found {
    relation: i64,
    relation_name: String,
    name: String,
    always: bool,
    body: String,
    function: String,
}

/// Compares the declarations with what is installed.
pub async fn plan(connection: &mut PgConnection, outboxes: &[Outbox]) -> Result<Plan> {
    compared(connection, outboxes, true).await
}

async fn compared(connection: &mut PgConnection, outboxes: &[Outbox], looks_inside: bool) -> Result<Plan> {
    let found = installed(connection).await?;
    let mut seen: BTreeMap<i64, &Outbox> = BTreeMap::new();
    let mut plan = Plan::default();
    for outbox in outboxes {
        let mapping = Mapping::of(connection, outbox).await?;
        if let Some(first) = seen.insert(mapping.shape.oid, outbox) {
            return Err(Error::Twice { first: first.name.clone(), second: outbox.name.clone() });
        }
        plan.tables.push(adopted(connection, outbox, &mapping, &found, looks_inside).await?);
    }
    for found in &found {
        if !seen.contains_key(&found.relation) {
            plan.tables.push(orphan(found));
        }
    }
    Ok(plan)
}

/// What is not as it should be, for whoever looks from time to time: by the catalogs alone.
pub async fn alarms(connection: &mut PgConnection, outboxes: &[Outbox]) -> Result<Vec<Alarm>> {
    let mut alarms = Vec::new();
    for outbox in outboxes {
        let plan = match compared(connection, std::slice::from_ref(outbox), false).await {
            Ok(plan) => plan,
            Err(Error::Database(error)) => return Err(error.into()),
            Err(error) => {
                let (table, reason) = (outbox.name.clone(), error.to_string());
                alarms.push(Alarm { table, state: State::Outdated, reason });
                continue;
            }
        };
        let Some(difference) = plan.tables.first() else { continue };
        let reason = match difference.state {
            State::Installed | State::Orphaned => continue,
            State::Missing | State::Disabled => {
                "its rows become no events: `postrider apply` mends it, and takes those that came meanwhile"
            }
            State::Outdated => {
                "what is installed for it is outdated: see `postrider plan`, then `postrider apply`"
            }
        };
        // By the name it is declared with, as whoever asked knows it.
        alarms.push(Alarm { table: outbox.name.clone(), state: difference.state, reason: reason.to_owned() });
    }
    Ok(alarms)
}

async fn installed(connection: &mut PgConnection) -> Result<Vec<Found>> {
    let rows = sqlx::query(include_str!("sql/installed.sql")).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Found {
                relation: row.try_get("relation")?,
                relation_name: row.try_get("relation_name")?,
                name: row.try_get("name")?,
                always: row.try_get("is_always")?,
                body: row.try_get("body")?,
                function: row.try_get("function")?,
            })
        })
        .collect()
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
    found: &[Found],
    looks_inside: bool,
) -> Result<Difference> {
    let name = &mapping.shape.name;
    let ours: Vec<&Found> = found.iter().filter(|found| found.relation == mapping.shape.oid).collect();
    let wanted = triggers(connection, outbox, mapping).await?;
    let state = if wanted.is_empty() && ours.is_empty() {
        State::Installed
    } else if ours.is_empty() {
        State::Missing
    } else {
        compare(&wanted, &ours)
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.extend(replace(mapping, &wanted, &ours));
    }
    let (mover_state, mover) = mover(connection, outbox, mapping).await?;
    statements.extend(mover);
    let granted = grants(connection, outbox, mapping).await?;
    let state = match state {
        State::Installed if mover_state != State::Installed => mover_state,
        State::Installed if !granted.is_empty() => State::Outdated,
        state => state,
    };
    statements.extend(granted);
    let mut reverse: Vec<String> = wanted
        .iter()
        .map(|wanted| format!("drop trigger if exists \"{}\" on {name}", wanted.trigger))
        .collect();
    reverse.extend(wanted.iter().map(|wanted| format!("drop function if exists {}()", wanted.function)));
    if outbox.mode == Mode::Poll {
        let function = function_name(connection, mapping, "move").await?;
        reverse.push(format!("drop function if exists {function}(uuid, integer)"));
    }
    let (waiting, complaints) = if looks_inside {
        (waiting(connection, mapping).await?, inspect::of_table(connection, outbox, mapping).await?)
    } else {
        (0, Vec::new())
    };
    let notes = notes(outbox, mapping, state, waiting);
    Ok(Difference { table: name.clone(), state, statements, reverse, complaints, waiting, notes })
}

fn notes(outbox: &Outbox, mapping: &Mapping, state: State, waiting: i64) -> Vec<String> {
    let mut notes = Vec::new();
    if state == State::Installed {
        return notes;
    }
    if waiting > 0 {
        notes.push(match outbox.mode {
            Mode::Trigger => format!("{waiting} rows are not sent: they are taken first"),
            Mode::Poll => format!("{waiting} rows are not sent: the relay takes them"),
        });
    }
    if state == State::Missing && mapping.claimed.is_none() {
        notes.push(
            "stop its old poller before: nothing in a row can tell it that the row is taken".to_owned(),
        );
    }
    if mapping.order.iter().all(|column| column.base_type == "uuid") {
        notes.push(match outbox.mode {
            Mode::Trigger if waiting == 0 => String::new(),
            _ => "nothing says which row came first, a uuid does not: name a column that does with columns.order, or rows of one key may be taken in another order".to_owned(),
        });
        notes.retain(|note| !note.is_empty());
    }
    if !mapping.has_lifecycle() && outbox.mode == Mode::Poll {
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
        function: function_name(connection, mapping, "append").await?,
        body: generate::append(mapping),
    }];
    if let Some(body) = generate::claim(mapping) {
        let function = function_name(connection, mapping, "claim").await?;
        wanted.push(Wanted { trigger: CLAIM, function, body });
    }
    Ok(wanted)
}

fn compare(wanted: &[Wanted], ours: &[&Found]) -> State {
    let is_same =
        |wanted: &Wanted| ours.iter().any(|found| found.name == wanted.trigger && found.body == wanted.body);
    if ours.len() != wanted.len() || !wanted.iter().all(is_same) {
        State::Outdated
    } else if ours.iter().any(|found| !found.always) {
        State::Disabled
    } else {
        State::Installed
    }
}

/// The triggers anew, and behind them, under the same lock, the rows that are there: nobody can write before, nothing is left out.
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
    }
    // Also whoever has locked rows and not written yet: a poller in the middle of its batch.
    statements.push(format!("lock table {name} in exclusive mode"));
    statements
        .extend(ours.iter().map(|found| format!("drop trigger if exists \"{}\" on {name}", found.name)));
    for wanted in wanted {
        let (trigger, function) = (wanted.trigger, &wanted.function);
        let when = if trigger == CLAIM { "before" } else { "after" };
        statements.push(format!("drop trigger if exists \"{trigger}\" on {name}"));
        statements.push(format!(
            "create trigger \"{trigger}\" {when} insert on {name} for each row execute function {function}()"
        ));
        statements.push(format!("alter table {name} enable always trigger \"{trigger}\""));
        if mapping.shape.partitioned {
            statements.push(format!(
                "do $postrider$\ndeclare\n    part regclass;\nbegin\n    for part in select relid from pg_partition_tree({}) where parentrelid is not null loop\n        execute format('alter table %s enable always trigger \"{trigger}\"', part);\n    end loop;\nend\n$postrider$",
                crate::capture::literal(name)
            ));
        }
    }
    if !wanted.is_empty() {
        statements.push(generate::transfer(mapping, &generate::waiting(mapping, "o"), "all", ""));
    }
    statements
}

/// The function that moves rows, for a table on which nothing may be installed.
async fn mover(
    connection: &mut PgConnection,
    outbox: &Outbox,
    mapping: &Mapping,
) -> Result<(State, Vec<String>)> {
    let function = format!("{}(uuid, integer)", function_name(connection, mapping, "move").await?);
    let found: Option<String> =
        sqlx::query_scalar("select prosrc from pg_proc where oid = to_regprocedure($1)")
            .bind(&function)
            .fetch_optional(&mut *connection)
            .await?;
    let Some(body) = generate::mover(outbox, mapping) else {
        return Ok(match found {
            Some(_) => (State::Outdated, vec![format!("drop function {function}")]),
            None => (State::Installed, Vec::new()),
        });
    };
    let state = match found {
        Some(found) if found == body => return Ok((State::Installed, Vec::new())),
        Some(_) => State::Outdated,
        None => State::Missing,
    };
    let settings: String = crate::capture::json_settings(&mapping.others)
        .iter()
        .map(|(name, wanted)| format!(" set {name} = '{wanted}'"))
        .collect::<Vec<_>>()
        .concat();
    let mut statements = vec![
        format!(
            "create or replace function {function} returns bigint\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp{settings}\nas {}",
            dollar_quoted(&body)
        ),
        format!("revoke all on function {function} from public"),
    ];
    for role in inspect::relay_roles(connection).await? {
        statements.push(format!("grant execute on function {function} to {}", role.ident));
    }
    Ok((state, statements))
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
        complaints: Vec::new(),
        waiting: 0,
        notes: Vec::new(),
    }
}

/// Unique for the table and the purpose, and readable.
pub(super) async fn function_name(
    connection: &mut PgConnection,
    mapping: &Mapping,
    purpose: &str,
) -> Result<String> {
    Ok(sqlx::query_scalar(
        "select 'postrider.' || quote_ident(case when octet_length(n) <= 63 then n else left(n, 40) || '_' || left(md5(n), 8) end)
         from (select $2 || '_' || n.nspname || '_' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where c.oid = $1::bigint::oid) as f (n)",
    )
    .bind(mapping.shape.oid)
    .bind(purpose)
    .fetch_one(connection)
    .await?)
}

async fn waiting(connection: &mut PgConnection, mapping: &Mapping) -> Result<i64> {
    let asked =
        format!("select count(*) from {} o where {}", mapping.shape.name, generate::waiting(mapping, "o"));
    Ok(sqlx::query_scalar(AssertSqlSafe(asked)).persistent(false).fetch_one(connection).await?)
}

/// How long a lock on a user's table is waited for before everybody else goes first.
const LOCK_TIMEOUT: &str = "500ms";
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Brings every declared table to where it should be, in one transaction, and takes the rows that are there; orphans only with
/// `remove_orphans`.
pub async fn apply(connection: &mut PgConnection, outboxes: &[Outbox], remove_orphans: bool) -> Result<Plan> {
    let mut attempt = 1;
    loop {
        match attempted(connection, outboxes, remove_orphans).await {
            Err(Error::Database(sqlx::Error::Database(error)))
                if error.code().as_deref() == Some("55P03") && attempt < TRIES =>
            {
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn attempted(connection: &mut PgConnection, outboxes: &[Outbox], remove_orphans: bool) -> Result<Plan> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    sqlx::query("select set_config('lock_timeout', $1, true), set_config('timezone', 'UTC', true), set_config('intervalstyle', 'iso_8601', true)")
        .bind(LOCK_TIMEOUT)
        .execute(&mut *transaction)
        .await?;
    let plan = plan(&mut transaction, outboxes).await?;
    for (number, difference) in plan.tables.iter().enumerate() {
        if difference.state == State::Orphaned && !remove_orphans {
            continue;
        }
        for statement in &difference.statements {
            sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *transaction).await?;
            // Under the lock, and before the rows are taken.
            if statement.starts_with("lock table")
                && let Some(outbox) = outboxes.get(number)
            {
                refuse_claims(&mut transaction, outbox).await?;
            }
        }
    }
    transaction.commit().await?;
    Ok(plan)
}

/// A claim of a moment ago means that the old poller is at work: what it sends now would be sent twice.
async fn refuse_claims(connection: &mut PgConnection, outbox: &Outbox) -> Result<()> {
    let mapping = Mapping::of(connection, outbox).await?;
    let Some(claimed) = &mapping.claimed else { return Ok(()) };
    let asked = format!(
        "select count(*) from {} o where {} and o.{} > {}",
        mapping.shape.name,
        generate::waiting(&mapping, "o"),
        claimed.ident,
        moment(claimed, "(clock_timestamp() - make_interval(secs => $1))"),
    );
    let claims: i64 = sqlx::query_scalar(AssertSqlSafe(asked))
        .bind(outbox.stale_after.as_secs_f64())
        .persistent(false)
        .fetch_one(connection)
        .await?;
    if claims > 0 {
        return Err(Error::Claimed { table: outbox.name.clone(), claims, stale_after: outbox.stale_after });
    }
    Ok(())
}
