//! The statement that moves rows of an adopted table into the log, and the functions that have it.

use super::declaration::{Mode, Outbox};
use super::generate::{Event, fit};
use super::mapping::{Mapping, moment};
use super::marks::COMMIT;
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
    let unmarked = unmarked(mapping);
    // Where there is a claim too: whoever takes claims back that seem stale to him takes ours back while a sink is away.
    if mapping.sent.is_some() { format!("{unmarked} and {}", not_adopted(mapping, "o")) } else { unmarked }
}

/// By their own columns, which whoever had a row before us may have changed.
fn unmarked(mapping: &Mapping) -> String {
    let marks = [&mapping.sent, &mapping.claimed].into_iter().flatten();
    let which: Vec<String> = marks.map(|mark| format!("o.{} is null", mark.ident)).collect();
    if which.is_empty() { "true".to_owned() } else { which.join(" and ") }
}

/// By the notes that the owner of the table sees, with a probe for each row whatever the server knows of them: as a join, with notes that were none
/// when they were last looked at, it compared every row with every note, 12 s for 8,000 rows and as many notes.
pub(super) fn not_adopted(mapping: &Mapping, row: &str) -> String {
    format!(
        "not exists (select from postrider.adopted a where a.source_id = {row}.{}::text and a.outbox = {}{} offset 0)",
        mapping.id.ident,
        literal(&mapping.shape.name),
        mapping.is_born("a", row)
    )
}

/// Rows go into the log in sets of so many, and of so many bytes and one row more: an array holds a gigabyte at most.
const SET_ROWS: i64 = 1000;
const SET_BYTES: i64 = 64 << 20;

/// How many rows are looked at in one go for some that nobody has locked.
const WIDEST: i32 = 50_000;

/// Whether a row that was taken goes: by polling, nothing else could say that of one that has no mark.
fn is_deleted(mapping: &Mapping, mode: Mode) -> bool {
    mode == Mode::Poll && !mapping.is_marked()
}

/// What is done about rows that somebody has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Locked {
    /// They are left to him.
    Skipped,
    /// They are left to him, and their keys wait behind them.
    Awaited,
    /// There are none, or nothing is taken.
    Refused,
}

/// The rows that are taken, as `taken`, behind what it takes to find them. A foreign key that refers to a row does not count where the
/// row stays.
///
/// For keys that wait, the page that was looked at is compared with what of it was free. By `not in`, for which the server
/// makes a hash whatever number of rows it expects, and with the marks in a `coalesce`: by an index of the rows that wait it compared all of
/// them with the page, 700 ms for 1,000 of 60,000 rows that were not analyzed, against 110 ms, which is what it took without a page too.
fn taken(mapping: &Mapping, mode: Mode, which: &str, limit: &str, locked: Locked) -> String {
    let (name, id) = (&mapping.shape.name, &mapping.id.ident);
    // A mover's rows are unmarked; a taker's may be claimed, and it takes all of them.
    let sorted = if mode == Mode::Poll { mapping.sorted_waiting("o") } else { mapping.sorted("o") };
    let fit = fit(mapping, "o");
    let lock = if is_deleted(mapping, mode) { "for update" } else { "for no key update" };
    if locked != Locked::Awaited {
        return format!(
            "taken as materialized (
    select o.* from {name} o
    where {which}
      and {fit}
    order by {sorted}
    limit {limit}
    {lock} {})",
            if locked == Locked::Refused { "nowait" } else { "skip locked" }
        );
    }
    format!(
        "page as materialized (
    select o.{id} as id, {key} as key, row_number() over (order by {sorted}) as place from {name} o
    where {which}
      and {fit}
      and coalesce({key} not in (select p.key from unnest(mover.passed) as p (key)), true)
    order by {sorted}
    limit {limit}),
free as materialized (
    select o.* from {name} o
    where o.{id} = any (array(select p.id from page p))
      and coalesce({unmarked}, false)
      and {fit}
    {lock} skip locked),
locked as materialized (
    select p.key, min(p.place) as place from page p
    where p.key is not null and p.id not in (select f.{id} from free f)
    group by p.key),
taken as materialized (
    select f.* from free f
    where f.{id} not in (select p.id from page p join locked l on l.key = p.key and l.place < p.place))",
        key = Event::of(mapping, "o").key,
        unmarked = unmarked(mapping),
    )
}

/// Claims, appends and marks in one statement, for a function that belongs to the table's owner. `which` are the rows, `limit` how many
/// of them; their number goes into `moved`, and where any could be locked the keys that wait into `waiting`, and how many rows were looked at into `looked`. By polling, a row in
/// which nothing can say that it was taken is deleted.
fn transfer(mapping: &Mapping, mode: Mode, which: &str, limit: &str, locked: Locked) -> String {
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
        None if is_deleted(mapping, mode) => {
            format!(",\nmarked as (delete from {name} o using taken t where o.{id} = t.{id})")
        }
        None => String::new(),
    };
    let taken = taken(mapping, mode, which, limit, locked);
    let places = || mapping.order.iter().enumerate();
    let (waiting, into) = if locked == Locked::Awaited {
        (", (select array_agg(l.key) from locked l), (select count(*) from page)", "moved, waiting, looked")
    } else {
        ("", "moved")
    };
    format!(
        "with {taken}{marked}
select coalesce(sum({recorder}(g.rows, {noted})), 0){waiting} into {into}
from (
    select array_agg(row(n.source_id, n.type, n.entity, n.key, n.tenant, n.payload, n.headers, n.created_at, n.born)::postrider.adoptable order by n.place) as rows
    from (
        select m.*, row_number() over so_far as place, (row_number() over so_far - 1) / {SET_ROWS} as rows_before,
               sum(octet_length(m.payload::text)) over so_far / {SET_BYTES} as bytes_before
        from (
            select {source_id} as source_id, {kind} as type, {entity} as entity, {key} as key, {tenant} as tenant,
                   ({payload})::json as payload, {headers} as headers, ({created})::timestamptz as created_at, ({born})::bigint as born,
                   {places}
            from taken t) m
        window so_far as (order by {place} rows unbounded preceding)) n
    group by n.rows_before, n.bytes_before
    order by n.rows_before, n.bytes_before
    offset 0) g",
        recorder = Recorder::of_outbox(&mapping.shape).function,
        noted = mapping.has_lifecycle(),
        born = mapping.born("t").as_deref().unwrap_or("null"),
        places = places().map(|(n, column)| format!("t.{} as place_{n}", column.ident)).collect::<Vec<_>>().join(", "),
        place = places().map(|(n, _)| format!("m.place_{n}")).collect::<Vec<_>>().join(", "),
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
///
/// The table's triggers and foreign keys may want something that somebody has locked, who may want a row next that is held here: as for marks,
/// nobody waits until the server ends him for that. Who holds a single row can wait for longer, and comes through where much is locked for moments.
pub(super) fn mover(outbox: &Outbox, mapping: &Mapping) -> Option<String> {
    if outbox.mode != Mode::Poll {
        return None;
    }
    Some(format!(
        "
#variable_conflict use_column
<<mover>>
declare
    moved bigint;
    filled bigint;
    passed text[] := '{{}}';
    waiting text[];
    page_rows integer := $2;
    looked bigint;
begin
    if not postrider.hold_keeper({name}::text, $1) then
        return -1;
    end if;
    perform pg_catalog.set_config('lock_timeout', case when $2 > 1 then '20ms' else '200ms' end, true);
    {moved}
    set constraints all immediate;
    perform pg_catalog.set_config('lock_timeout', '{COMMIT}', true);
    return moved;
end
",
        name = literal(&mapping.shape.name),
        moved = moved(mapping),
    ))
}

/// Rows of one key must not overtake each other. Most of the time nobody has locked one: then nothing is looked at twice, which took a third of
/// the time.
fn moved(mapping: &Mapping) -> String {
    let transfer = |limit, locked| transfer(mapping, Mode::Poll, &untaken(mapping), limit, locked);
    if mapping.key.is_none() {
        return format!("{};", transfer("$2", Locked::Skipped));
    }
    format!(
        "begin
        {free};
    exception when lock_not_available then
        -- What waits behind rows that are locked is passed over, and the batch filled with others. Each page is twice the one before:
        -- all that is passed over is walked again for each.
        filled := 0;
        loop
            {awaited};
            filled := filled + moved;
            -- Rows without a key that are locked are no key to pass over: the next page, which is larger, goes beyond them.
            exit when filled >= $2 or looked < page_rows or (waiting is null and page_rows >= {WIDEST});
            passed := passed || coalesce(waiting, '{{}}');
            page_rows := least(2 * page_rows, {WIDEST});
        end loop;
        moved := filled;
    end;",
        free = transfer("$2", Locked::Refused),
        awaited = transfer("mover.page_rows", Locked::Awaited),
    )
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
        // Under the lock by which the triggers come, none is locked by anybody else.
        transfer = transfer(mapping, Mode::Trigger, &waiting(mapping, "o"), "all", Locked::Skipped),
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
