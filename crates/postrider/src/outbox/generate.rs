//! What is generated for an adopted table: the functions of its triggers, and the statement that moves rows into the log.

use super::declaration::{Mode, Outbox};
use super::mapping::{Mapping, moment};
use crate::capture::{Column, json_settings, json_value, literal};

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

const BELL: &str = "    if coalesce(pg_sequence_last_value('postrider.armed'), 0) > coalesce(pg_sequence_last_value('postrider.disarmed'), 0) then
        perform postrider.ring_bell();
    end if;\n";

/// The body of the function that appends a row's event in the row's own transaction.
pub(super) fn append(mapping: &Mapping) -> String {
    let event = Event::of(mapping, "new");
    let settings = json_settings(&mapping.others);
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
    let noted = if mapping.has_lifecycle() {
        format!(
            "    insert into postrider.adopted (outbox, lane, seq, event, source_id) values ({}, lane, seq, event_id, {});\n",
            literal(&mapping.shape.name),
            event.source_id
        )
    } else {
        String::new()
    };
    format!(
        "
#variable_conflict use_variable
declare
    event_id constant uuid := postrider.uuid7();
    kind constant text := {kind};
    entity constant text := {entity};
    key constant text := {key};
    tenant constant text := {tenant};
    headers json;
    slot constant smallint := coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7;
    lane smallint := case when key is null then uuid_hash_extended(event_id, 0) else hashtextextended(key collate \"C\", 0) end & (postrider.lanes() - 1);
    seq bigint;
{was}begin
{skipped}    if {source_id} is null then
        raise exception using errcode = '22004',
            message = 'postrider: ' || {id_column} || ' of ' || tg_relid::regclass || ' must not be null',
            detail = 'Nothing was written.',
            hint = 'It is the id by which consumers know the event.';
    end if;
    if not ({fit}) then
        perform postrider.refuse_event(kind, octet_length(new.{payload_column}::text), key, tenant, entity, null);
    end if;
{set}    headers := postrider.captured_headers(kind, {headers});
    insert into postrider.events (slot, lane, id, source_id, type, entity, key, tenant, payload, headers, created_at)
    values (slot, lane, event_id, {source_id}, kind, entity, key, tenant, {payload}, headers, {created})
    returning events.seq into seq;
{noted}{BELL}{back}    return null;
end
",
        kind = event.kind,
        entity = event.entity,
        key = event.key,
        tenant = event.tenant,
        fit = fit(mapping, "new"),
        payload_column = mapping.payload.ident,
        id_column = literal(&mapping.id.name),
        headers = event.headers,
        source_id = event.source_id,
        payload = event.payload,
    )
}

/// The body of the function that claims a row as it comes, so that another poller never sees it.
pub(super) fn claim(mapping: &Mapping) -> Option<String> {
    let (claimed, sent) = (mapping.claimed.as_ref()?, mapping.sent.as_ref()?);
    Some(format!(
        "
begin
    if new.{sent} is null then
        new.{claimed} := {now};
    end if;
    return new;
end
",
        sent = sent.ident,
        claimed = claimed.ident,
        now = moment(claimed, "now()"),
    ))
}

/// Rows that nobody has sent and that are not in the log.
pub(super) fn waiting(mapping: &Mapping, row: &str) -> String {
    let mut conditions = Vec::new();
    if let Some(sent) = &mapping.sent {
        conditions.push(format!("{row}.{} is null", sent.ident));
    }
    if mapping.has_lifecycle() {
        conditions.push(not_adopted(mapping, row));
    }
    if conditions.is_empty() { "true".to_owned() } else { conditions.join(" and ") }
}

/// Rows that a mover has not taken, by what is cheapest to ask of the table.
pub(super) fn untaken(mapping: &Mapping) -> String {
    let mut which = Vec::new();
    if let Some(sent) = &mapping.sent {
        which.push(format!("o.{} is null", sent.ident));
    }
    match &mapping.claimed {
        Some(claimed) => which.push(format!("o.{} is null", claimed.ident)),
        None if mapping.has_lifecycle() => which.push(not_adopted(mapping, "o")),
        None => which.push("true".to_owned()),
    }
    which.join(" and ")
}

/// The table's name is compared inside a `coalesce`, which the planner takes to hold for half of all notes. A bare comparison it takes
/// to hold for one in 200 until they are analyzed, and a relay's session, which goes by indexes, then compared every row with every
/// note: 33 s for 10,000 of them, where the query alone takes 0.05 s now.
pub(super) fn not_adopted(mapping: &Mapping, row: &str) -> String {
    format!(
        "not exists (select from postrider.adopted a where a.source_id = {row}.{}::text and coalesce(a.outbox = {}, false))",
        mapping.id.ident,
        literal(&mapping.shape.name)
    )
}

/// Claims, appends and marks in one statement. `which` are the rows, `limit` how many of them, `answer` where their number goes.
pub(super) fn transfer(mapping: &Mapping, which: &str, limit: &str, answer: &str) -> String {
    let event = Event::of(mapping, "t");
    let name = &mapping.shape.name;
    let id = &mapping.id.ident;
    let created = event.created.as_deref().unwrap_or("now()");
    let noted = if mapping.has_lifecycle() {
        format!(
            ",
noted as (
    insert into postrider.adopted (outbox, lane, seq, event, source_id)
    select {}, a.lane, a.seq, a.id, a.source_id from appended a)",
            literal(name)
        )
    } else {
        String::new()
    };
    let marked = match &mapping.claimed {
        Some(claimed) => format!(
            ",
marked as (update {name} o set {} = {} from taken t where o.{id} = t.{id})",
            claimed.ident,
            moment(claimed, "now()")
        ),
        // Nothing in the row can say that it was taken.
        None if !mapping.has_lifecycle() => {
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
    for update skip locked),
appended as (
    insert into postrider.events (slot, lane, id, source_id, type, entity, key, tenant, payload, headers, created_at)
    select coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7,
           case when n.key is null then uuid_hash_extended(n.id, 0) else hashtextextended(n.key collate \"C\", 0) end & (postrider.lanes() - 1),
           n.id, n.source_id, n.type, n.entity, n.key, n.tenant, n.payload, n.headers, n.created_at
    from (
        select postrider.uuid7() as id, {source_id} as source_id, {kind} as type, {entity} as entity, {key} as key, {tenant} as tenant,
               {payload} as payload, {headers} as headers, {created} as created_at
        from taken t
        order by {place}
        offset 0) n
    returning events.lane, events.seq, events.id, events.source_id){noted}{marked}
select count(*){answer} from appended",
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
    -- Held until the end of the transaction: one mover after the other, also one that was frozen and wakes up.
    perform from postrider.keepers k
    where k.outbox = {name} and k.owner = $1 and k.expires_at > clock_timestamp() for update;
    if not found then
        return -1;
    end if;
    {transfer};
    if moved > 0 then
        perform postrider.ring_bell();
    end if;
    return moved;
end
",
        name = literal(&mapping.shape.name),
        transfer = transfer(mapping, &untaken(mapping), "$2", " into moved"),
    ))
}
