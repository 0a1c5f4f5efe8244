//! What is generated for an adopted table: the functions of its triggers, and the statement that moves rows into the log.

use super::declaration::{Mode, Outbox};
use super::mapping::{Mapping, moment};
use crate::capture::{Column, Recorder, json_settings, json_value, literal};

/// On the table, for each row that was inserted. First in the alphabet, as triggers fire by name.
pub(super) const APPEND: &str = "00_postrider_outbox";
/// On the table, before a row is inserted. Last, so that nothing sets the claim back.
pub(super) const CLAIM: &str = "zz_postrider_claim";

/// The parts of an event, as SQL over a row.
struct Event {
    source_id: String,
    kind: String,
    entity: String,
    key: String,
    tenant: String,
    payload: String,
    headers: String,
    created: Option<String>,
}

impl Event {
    fn of(mapping: &Mapping, row: &str) -> Self {
        let text = |column: &Column| format!("{row}.{}::text", column.ident);
        let optional =
            |column: &Option<Column>| column.as_ref().map_or_else(|| "null::text".to_owned(), text);
        let payload = format!("{row}.{}", mapping.payload.ident);
        Self {
            source_id: text(&mapping.id),
            kind: text(&mapping.kind),
            entity: optional(&mapping.entity),
            key: optional(&mapping.key),
            tenant: optional(&mapping.tenant),
            payload: match mapping.payload.base_type.as_str() {
                "json" => payload,
                "jsonb" => format!("to_json({payload})"),
                _ => format!("postrider.json_or_text({payload}::text)"),
            },
            headers: headers(mapping, row),
            created: mapping
                .created
                .as_ref()
                // Infinities and the years before Christ are times that most consumers cannot write down.
                .map(|column| {
                    let moment = zoned(column, row);
                    format!("coalesce(case when {moment} >= '0001-01-01 00:00:00+00' then least({moment}, now()) end, now())")
                }),
        }
    }
}

fn zoned(column: &Column, row: &str) -> String {
    if column.base_type == "timestamp with time zone" {
        format!("{row}.{}", column.ident)
    } else {
        format!("{row}.{} at time zone 'UTC'", column.ident)
    }
}

/// Columns that nothing is known of, each under its name, and null ones left out. Not by `json_strip_nulls`, which would also take
/// the nulls inside of them.
fn headers(mapping: &Mapping, row: &str) -> String {
    let label = |name: &str| literal(&format!(",{}:", serde_json::Value::from(name)));
    let mut parts: Vec<String> = mapping
        .others
        .iter()
        .map(|column| {
            let value = json_value(column, &format!("{row}.{}", column.ident));
            format!("coalesce({} || to_json({value})::text, '')", label(&column.name))
        })
        .collect();
    if let Some(name) = &mapping.id_header {
        parts.push(format!("{} || to_json({row}.{}::text)::text", label(name), mapping.id.ident));
    }
    if parts.is_empty() {
        return "null::json".to_owned();
    }
    format!("nullif('{{' || substr({}, 2) || '}}', '{{}}')::json", parts.join(" || "))
}

/// Whether a row can be an event at all; never null.
pub(super) fn fit(mapping: &Mapping, row: &str) -> String {
    let Event { source_id, kind, entity, key, tenant, .. } = Event::of(mapping, row);
    let payload = &mapping.payload.ident;
    format!(
        "coalesce({kind} <> '' and octet_length({kind}) <= 255, false) and coalesce(octet_length({key}) <= 1024, true)
            and coalesce(octet_length({tenant}) <= 255, true) and coalesce(octet_length({entity}) <= 255, true) and {row}.{payload} is not null
            and {source_id} is not null"
    )
}

/// The body of the function that appends a row's event in the row's own transaction.
pub(super) fn append(mapping: &Mapping) -> String {
    let event = Event::of(mapping, "new");
    let settings = settings(mapping);
    let was: String = settings
        .iter()
        .map(|(name, _)| format!("    was_{name} constant text := current_setting('{name}');\n"))
        .collect::<Vec<_>>()
        .concat();
    let set: String = settings
        .iter()
        .map(|(name, wanted)| {
            format!("    if was_{name} <> '{wanted}' then perform set_config('{name}', '{wanted}', true); end if;\n")
        })
        .collect::<Vec<_>>()
        .concat();
    let back: String = settings
        .iter()
        .map(|(name, wanted)| {
            format!("    if was_{name} <> '{wanted}' then perform set_config('{name}', was_{name}, true); end if;\n")
        })
        .collect::<Vec<_>>()
        .concat();
    let skipped = mapping.sent.as_ref().map_or_else(String::new, |sent| {
        format!("    -- Sent already, by whoever inserted it.\n    if new.{} is not null then return null; end if;\n", sent.ident)
    });
    let created = event.created.as_deref().unwrap_or("now()");
    let born = mapping.born("new");
    format!(
        "
#variable_conflict use_variable
declare
    source text;
    kind text;
    entity text;
    key text;
    tenant text;
    headers json;
{was}begin
{skipped}{set}    source := {source_id};
    kind := {kind};
    entity := {entity};
    key := {key};
    tenant := {tenant};
    if source is null then
        raise exception using errcode = '22004',
            message = 'postrider: ' || {id_column} || ' of ' || tg_relid::regclass || ' must not be null',
            detail = 'Nothing was written.',
            hint = 'It is the id by which consumers know the event.';
    end if;
    if not ({fit}) then
        perform postrider.refuse_event(kind, octet_length(new.{payload_column}::text)::bigint, key, tenant, entity, null::text, ''::text);
    end if;
{headers}
    perform {recorder}(source, kind, entity, key, tenant, ({payload})::json, headers, ({created})::timestamptz, {noted}, ({born})::bigint);
{back}    return null;
end
",
        kind = event.kind,
        entity = event.entity,
        key = event.key,
        tenant = event.tenant,
        fit = fit(mapping, "new"),
        payload_column = mapping.payload.ident,
        id_column = literal(&mapping.id.name),
        headers = put_headers(mapping, &event.headers),
        source_id = event.source_id,
        payload = event.payload,
        recorder = Recorder::of_outbox(&mapping.shape).function,
        noted = mapping.has_lifecycle(),
        born = born.as_deref().unwrap_or("null"),
    )
}

/// Columns that go or get another name or type do not fail an insert: then the headers are made of what there is.
fn put_headers(mapping: &Mapping, headers: &str) -> String {
    if mapping.others.is_empty() {
        return format!("    headers := postrider.captured_headers(kind, {headers});");
    }
    let known: Vec<&str> = mapping.known().map(|column| column.literal.as_str()).collect();
    let id = mapping
        .id_header
        .as_ref()
        .map_or_else(|| "null".to_owned(), |name| format!("json_build_object({}, source)", literal(name)));
    format!(
        "    begin
        headers := postrider.captured_headers(kind, {headers});
    exception when undefined_column or datatype_mismatch then
        headers := postrider.captured_headers(kind, postrider.other_fields(postrider.unknown_fields(tg_relid, array[{}], new, new, false), {id}));
    end;",
        known.join(", ")
    )
}

/// Of which the text is the same whatever the session has set.
const PLAIN: [&str; 11] = [
    "text",
    "character varying",
    "character",
    "name",
    "uuid",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "boolean",
    "oid",
];

/// Settings of the session on which the text of a row depends, with the value that is wanted.
pub(super) fn settings(mapping: &Mapping) -> Vec<(&'static str, &'static str)> {
    const ALL: [(&str, &str); 5] = [
        ("timezone", "UTC"),
        ("intervalstyle", "iso_8601"),
        ("extra_float_digits", "1"),
        ("bytea_output", "hex"),
        ("datestyle", "ISO, MDY"),
    ];
    let is_plain = |column: &Column| {
        PLAIN.contains(&column.base_type.as_str()) || column.type_kind == b'e'.cast_signed()
    };
    let optional = [&mapping.entity, &mapping.key, &mapping.tenant].into_iter().flatten();
    if [&mapping.id, &mapping.kind].into_iter().chain(optional).all(is_plain) {
        json_settings(&mapping.others)
    } else {
        ALL.to_vec()
    }
}

/// The body of the function that claims a row as it comes, so that another poller never sees it.
pub(super) fn claim(mapping: &Mapping) -> Option<String> {
    let claimed = mapping.claimed.as_ref()?;
    let waits =
        mapping.sent.as_ref().map_or_else(|| "true".to_owned(), |sent| format!("new.{} is null", sent.ident));
    Some(format!(
        "
begin
    if {waits} then
        new.{claimed} := {now};
    end if;
    return new;
end
",
        claimed = claimed.ident,
        now = moment(claimed, "now()"),
    ))
}

/// Rows that nobody has sent and that are not in the log.
pub(super) fn waiting(mapping: &Mapping, row: &str) -> String {
    match (&mapping.sent, &mapping.claimed) {
        (Some(sent), _) => {
            format!("{row}.{} is null and {}", sent.ident, not_adopted(mapping, row, OWN_NOTES))
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
        None if mapping.sent.is_some() => which.push(not_adopted(mapping, "o", OWN_NOTES)),
        None => which.push("true".to_owned()),
    }
    which.join(" and ")
}

/// The notes of rows that are in the log, as the owner of their table sees them, and as a relay does.
pub(super) const OWN_NOTES: &str = "postrider.adopted";
pub(super) const ALL_NOTES: &str = "postrider.all_adopted";

/// The table's name is compared inside a `coalesce`, which the planner takes to hold for half of all notes. A bare comparison it takes
/// to hold for one in 200 until they are analyzed, and a relay's session, which goes by indexes, then compared every row with every
/// note: 33 s for 10,000 of them, where the query alone takes 0.05 s now.
pub(super) fn not_adopted(mapping: &Mapping, row: &str, notes: &str) -> String {
    format!(
        "not exists (select from {notes} a where a.source_id = {row}.{}::text and coalesce(a.outbox = {}, false){})",
        mapping.id.ident,
        literal(&mapping.shape.name),
        mapping.is_born("a", row)
    )
}

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
select count({recorder}(n.source_id, n.type, n.entity, n.key, n.tenant, n.payload, n.headers, n.created_at, {noted}, n.born)) into moved
from (
    select {source_id} as source_id, {kind} as type, {entity} as entity, {key} as key, {tenant} as tenant,
           ({payload})::json as payload, {headers} as headers, ({created})::timestamptz as created_at, ({born})::bigint as born
    from taken t
    order by {place}
    offset 0) n",
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
