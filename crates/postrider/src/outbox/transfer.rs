//! The statement that moves rows of an adopted table into the log, and the functions that have it.

use super::declaration::{Mode, Outbox};
use super::generate::{Event, fit};
use super::mapping::{Mapping, moment};
use crate::capture::{Recorder, literal};

/// Rows that nobody has sent and that are not in the log.
pub(super) fn waiting(mapping: &Mapping, row: &str) -> String {
    match (&mapping.sent, &mapping.claimed) {
        (Some(sent), _) => {
            format!("{row}.{} is null and {}", sent.ident, not_adopted(mapping, row))
        }
        (None, Some(claimed)) => format!("{row}.{} is null", claimed.ident),
        (None, None) => "true".to_owned(),
    }
}

/// Rows that a mover has not taken, by what is cheapest to ask of the table.
pub(super) fn untaken(mapping: &Mapping) -> String {
    let mut which = Vec::new();
    if let Some(sent) = &mapping.sent {
        which.push(format!("o.{} is null", sent.ident));
    }
    match &mapping.claimed {
        Some(claimed) => which.push(format!("o.{} is null", claimed.ident)),
        None if mapping.sent.is_some() => which.push(not_adopted(mapping, "o")),
        None => which.push("true".to_owned()),
    }
    which.join(" and ")
}

/// By the notes that the owner of the table sees. The table's name is compared inside a `coalesce`, which the planner takes to hold for half of all notes. A bare comparison it takes
/// to hold for one in 200 until they are analyzed, and a relay's session, which goes by indexes, then compared every row with every
/// note: 33 s for 10,000 of them, where the query alone takes 0.05 s now.
pub(super) fn not_adopted(mapping: &Mapping, row: &str) -> String {
    format!(
        "not exists (select from postrider.adopted a where a.source_id = {row}.{}::text and coalesce(a.outbox = {}, false){})",
        mapping.id.ident,
        literal(&mapping.shape.name),
        mapping.is_born("a", row)
    )
}

/// Rows go into the log in sets of so many, and of so many bytes and one row more: an array holds a gigabyte at most.
const SET_ROWS: i64 = 1000;
const SET_BYTES: i64 = 64 << 20;

/// Claims, appends and marks in one statement, for a function that belongs to the table's owner. `which` are the rows, `limit` how many
/// of them; their number goes into `moved`. By polling, a row in which nothing can say that it was taken is deleted.
fn transfer(mapping: &Mapping, mode: Mode, which: &str, limit: &str) -> String {
    let event = Event::of(mapping, "t");
    let name = &mapping.shape.name;
    let id = &mapping.id.ident;
    let created = event.created.as_deref().unwrap_or("now()");
    let marked = match &mapping.claimed {
        Some(claimed) => format!(
            ",
marked as (update {name} o set {} = {} from taken t where o.{id} = t.{id})",
            claimed.ident,
            moment(claimed, "now()")
        ),
        None if mode == Mode::Poll && !mapping.is_marked() => {
            format!(",\nmarked as (delete from {name} o using taken t where o.{id} = t.{id})")
        }
        None => String::new(),
    };
    format!(
        "with taken as materialized (
    select o.* from {name} o
    where {which}
      and {fit}
    order by {sorted}
    limit {limit}
    for update skip locked){marked}
select coalesce(sum({recorder}(g.rows, {noted})), 0) into moved
from (
    select array_agg(row(n.source_id, n.type, n.entity, n.key, n.tenant, n.payload, n.headers, n.created_at, n.born)::postrider.adoptable order by n.place) as rows
    from (
        select m.*, (m.place - 1) / {SET_ROWS} as rows_before,
               sum(octet_length(m.payload::text)) over (order by m.place) / {SET_BYTES} as bytes_before
        from (
            select {source_id} as source_id, {kind} as type, {entity} as entity, {key} as key, {tenant} as tenant,
                   ({payload})::json as payload, {headers} as headers, ({created})::timestamptz as created_at, ({born})::bigint as born,
                   row_number() over (order by {place}) as place
            from taken t) m) n
    group by n.rows_before, n.bytes_before
    order by n.rows_before, n.bytes_before
    offset 0) g",
        recorder = Recorder::of_outbox(&mapping.shape).function,
        noted = mapping.has_lifecycle(),
        born = mapping.born("t").as_deref().unwrap_or("null"),
        fit = fit(mapping, "o"),
        sorted = mapping.sorted("o"),
        place = mapping.sorted("t"),
        source_id = event.source_id,
        kind = event.kind,
        entity = event.entity,
        key = event.key,
        tenant = event.tenant,
        payload = event.payload,
        headers = event.headers,
    )
}

/// The body of the mover's function of a keeper's uuid and a number of rows: how many rows it moved, or -1 if another one keeps the table.
///
/// What the table's triggers defer is done before it ends: behind it nothing has the rights of the table's owner.
pub(super) fn mover(outbox: &Outbox, mapping: &Mapping) -> Option<String> {
    if outbox.mode != Mode::Poll {
        return None;
    }
    Some(format!(
        "
#variable_conflict use_column
declare
    moved bigint;
begin
    if not postrider.hold_keeper({name}::text, $1) then
        return -1;
    end if;
    {transfer};
    set constraints all immediate;
    return moved;
end
",
        name = literal(&mapping.shape.name),
        transfer = transfer(mapping, Mode::Poll, &untaken(mapping), "$2"),
    ))
}

/// The body of the function that takes the rows that are there and not in the log, when the triggers are installed.
pub(super) fn taker(outbox: &Outbox, mapping: &Mapping) -> String {
    format!(
        "
#variable_conflict use_column
declare
    moved bigint;
begin
{refused}    {transfer};
    set constraints all immediate;
    return moved;
end
",
        refused = refuse_claims(outbox, mapping).unwrap_or_default(),
        transfer = transfer(mapping, Mode::Trigger, &waiting(mapping, "o"), "all"),
    )
}

/// Rows that somebody has claimed a moment ago are his: what he sends now would be sent twice. For whoever runs the statements himself;
/// `apply` says it better, before.
fn refuse_claims(outbox: &Outbox, mapping: &Mapping) -> Option<String> {
    let (claimed, _) = (mapping.claimed.as_ref()?, mapping.sent.as_ref()?);
    let seconds = outbox.stale_after.as_secs_f64();
    let then = moment(claimed, &format!("(clock_timestamp() - make_interval(secs => {seconds}))"));
    Some(format!(
        "    if exists (select from {name} o where {waiting} and o.{claimed} > {then}) then
        raise exception using errcode = '55000', message = {message}, hint = {hint};
    end if;\n",
        name = mapping.shape.name,
        waiting = waiting(mapping, "o"),
        claimed = claimed.ident,
        message = literal(&format!(
            "postrider: rows of {} were claimed by another poller within the last {seconds} s and are not sent",
            mapping.shape.name
        )),
        hint = literal(&format!("Stop it, and try again {seconds} s later.")),
    ))
}
