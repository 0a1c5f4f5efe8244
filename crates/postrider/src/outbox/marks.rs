//! What a relay does to the rows of an adopted table. It is done in a function that belongs to the table's owner: triggers of the table
//! that fire then have his rights, and not those of the relay, which needs none on the table.

use super::declaration::{Mode, Outbox};
use super::mapping::{Mapping, moment};
use super::transfer;

/// How long a commit waits for others that notify, who want none of the rows that it holds: with what is waited for a row, tables whose triggers
/// notify lost whole batches at their end, while many others committed.
pub(super) const COMMIT: &str = "5s";

/// The types of its arguments: what is to be done, with which rows (their ids, the moments they were born, how often and why they were
/// refused), and an age in seconds.
pub(super) const ARGUMENTS: &str = "text,text[],bigint[],integer[],text[],double precision";

/// The same for a cleanup of `$2` rows behind so many, `$3`, that cannot be deleted.
pub(super) const CLEANED: &str = "null::text[], null::bigint[], array[$2, $3]::integer[], null::text[]";

/// In the place of rows, and of how they were refused.
pub(super) const NO_ROWS: &str = "null::text[], null::bigint[], null::integer[], null::text[]";

/// What can be asked of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task {
    /// These were sent to every sink.
    Sent,
    /// These were refused.
    Refused,
    /// These have only waited, and say nothing of that any more.
    Freed,
    /// Those that were sent so long ago go.
    Clean,
    /// How many were claimed by another poller since.
    Claimed,
    /// Its claims that are older are taken back.
    TakeBack,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Refused => "refused",
            Self::Freed => "freed",
            Self::Clean => "clean",
            Self::Claimed => "claimed",
            Self::TakeBack => "take back",
        }
    }

    /// A call. With the types that it is declared with, so that no other function of its name fits better.
    pub(super) fn call(self, function: &str, rows: &str, age: &str) -> String {
        format!("{function}('{}'::text, {rows}, {age}::double precision)", self.name())
    }
}

/// The body of the function: how many rows it were. `None` if nothing in the table could be kept.
///
/// What the table's triggers defer is done before it ends, as that would otherwise be done with the rights of the relay.
///
/// A row that somebody has locked is not waited for: he may want one next that is held here, and whoever waits for longer than the server's
/// `deadlock_timeout` then ends him or us. Who holds a single row can wait for longer: nothing smaller could be tried.
pub(super) fn body(outbox: &Outbox, mapping: &Mapping) -> Option<String> {
    if !mapping.has_lifecycle() {
        return None;
    }
    let steps = [
        (Task::Sent, sent(mapping)),
        (Task::Refused, refused(mapping)),
        (Task::Freed, freed(mapping)),
        (Task::Clean, cleaned(mapping)),
        (Task::Claimed, claims(outbox, mapping, false)),
        (Task::TakeBack, claims(outbox, mapping, true)),
    ];
    let branches: Vec<String> = steps
        .into_iter()
        .filter_map(|(task, step)| step.map(|step| (task, step)))
        .map(|(task, step)| {
            format!(
                "if $1 = '{}' then\n        {step};\n        get diagnostics kept_rows = row_count;\n",
                task.name()
            )
        })
        .collect();
    Some(format!(
        "
#variable_conflict use_column
declare
    kept_rows bigint := 0;
begin
    perform pg_catalog.set_config('lock_timeout', case when pg_catalog.cardinality($2) = 1 then '200ms' else '20ms' end, true);
    {}    end if;
    set constraints all immediate;
    perform pg_catalog.set_config('lock_timeout', '{COMMIT}', true);
    return kept_rows;
end
",
        branches.join("    els")
    ))
}

/// The rows that were given, each by its id and moment.
fn given(mapping: &Mapping) -> String {
    format!(
        "from unnest($2, $3, $4, $5) r (source_id, born, attempts, reason) where o.{id} = r.source_id::{kind}{born}",
        id = mapping.id.ident,
        kind = mapping.id.type_name,
        born = mapping.is_born("r", "o"),
    )
}

fn sent(mapping: &Mapping) -> Option<String> {
    let sent = mapping.sent.as_ref()?;
    Some(format!(
        "update {name} o set {sent} = {now} {given} and o.{sent} is null",
        name = mapping.shape.name,
        sent = sent.ident,
        // Not when the statement began: while it waited for a lock, rows may have come and been sent that it sees all the same.
        now = moment(sent, "clock_timestamp()"),
        given = given(mapping),
    ))
}

fn refused(mapping: &Mapping) -> Option<String> {
    let mut sets = Vec::new();
    if let Some(attempts) = &mapping.attempts {
        sets.push(format!("{} = greatest(r.attempts, 0)", attempts.ident));
    }
    if let Some(last_error) = &mapping.last_error {
        // A cast that is spelled out cuts off what is too long.
        sets.push(format!("{} = r.reason::{}", last_error.ident, last_error.type_name));
    }
    let told = format!("update {} o set {} {}", mapping.shape.name, sets.join(", "), given(mapping));
    (!sets.is_empty()).then_some(told)
}

fn freed(mapping: &Mapping) -> Option<String> {
    let last_error = mapping.last_error.as_ref()?;
    Some(format!("update {} o set {} = null {}", mapping.shape.name, last_error.ident, given(mapping)))
}

fn cleaned(mapping: &Mapping) -> Option<String> {
    let sent = mapping.sent.as_ref()?;
    Some(format!(
        "delete from {name} o where o.{id} in (
            select c.{id} from {name} c where c.{id} in (
                select b.{id} from {name} b where b.{sent} is not null and b.{sent} < {then} order by b.{sent}, b.{id} limit $4[1] offset $4[2])
            for update skip locked)
          and o.{sent} is not null",
        name = mapping.shape.name,
        id = mapping.id.ident,
        sent = sent.ident,
        then = moment(sent, "(now() - make_interval(secs => $6))"),
    ))
}

/// Claims of another poller: those that are young are counted, the others taken back.
fn claims(outbox: &Outbox, mapping: &Mapping, are_old: bool) -> Option<String> {
    let (claimed, sent) = mapping.claimed.as_ref().zip(mapping.sent.as_ref())?;
    if outbox.mode != Mode::Poll {
        return None;
    }
    let foreign = format!(
        "o.{} is null and o.{} is not null and {}",
        sent.ident,
        claimed.ident,
        transfer::not_adopted(mapping, "o")
    );
    let age = moment(claimed, "(clock_timestamp() - make_interval(secs => $6))");
    let (name, claimed) = (&mapping.shape.name, &claimed.ident);
    Some(if are_old {
        format!("update {name} o set {claimed} = null where {foreign} and o.{claimed} <= {age}")
    } else {
        format!("perform from {name} o where {foreign} and o.{claimed} > {age}")
    })
}
