//! What is generated for an adopted table: the functions of its triggers.

use super::mapping::{Mapping, moment};
use crate::capture::{Column, Recorder, json_settings, json_value, literal};

/// On the table, for each row that was inserted. First in the alphabet, as triggers fire by name.
pub(super) const APPEND: &str = "00_postrider_outbox";
/// On the table, before a row is inserted. Last, so that nothing sets the claim back.
pub(super) const CLAIM: &str = "zz_postrider_claim";

/// The parts of an event, as SQL over a row.
pub(super) struct Event {
    pub(super) source_id: String,
    pub(super) kind: String,
    pub(super) entity: String,
    pub(super) key: String,
    pub(super) tenant: String,
    pub(super) payload: String,
    pub(super) headers: String,
    pub(super) created: Option<String>,
}

impl Event {
    pub(super) fn of(mapping: &Mapping, row: &str) -> Self {
        let text = |column: &Column| format!("{}::text", mapping.value(column, row));
        let optional =
            |column: &Option<Column>| column.as_ref().map_or_else(|| "null::text".to_owned(), text);
        let payload = mapping.value(&mapping.payload, row);
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
                    let moment = zoned(column, &mapping.value(column, row));
                    format!("coalesce(case when {moment} >= '0001-01-01 00:00:00+00' then least({moment}, now()) end, now())")
                }),
        }
    }
}

fn zoned(column: &Column, value: &str) -> String {
    if column.base_type == "timestamp with time zone" {
        value.to_owned()
    } else {
        format!("{value} at time zone 'UTC'")
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
            let value = json_value(column, &mapping.value(column, row));
            format!("coalesce({} || to_json({value})::text, '')", label(&column.name))
        })
        .collect();
    if let Some(name) = &mapping.id_header {
        parts.push(format!("{} || to_json({}::text)::text", label(name), mapping.value(&mapping.id, row)));
    }
    if parts.is_empty() {
        return "null::json".to_owned();
    }
    format!("nullif('{{' || substr({}, 2) || '}}', '{{}}')::json", parts.join(" || "))
}

/// Whether a row can be an event at all; never null.
pub(super) fn fit(mapping: &Mapping, row: &str) -> String {
    let Event { source_id, kind, entity, key, tenant, .. } = Event::of(mapping, row);
    let payload = mapping.value(&mapping.payload, row);
    format!(
        "coalesce({kind} <> '' and octet_length({kind}) <= 255, false) and coalesce(octet_length({key}) <= 1024, true)
            and coalesce(octet_length({tenant}) <= 255, true) and coalesce(octet_length({entity}) <= 255, true) and {payload} is not null
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
#variable_conflict use_column
declare
    source text;
    kind text;
    entity text;
    key text;
    tenant text;
    headers json;
    event_id uuid;
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
        perform postrider.refuse_event(kind, octet_length({row_payload}::text)::bigint, key, tenant, entity, null::text, ''::text);
    end if;
{headers}
    event_id := {recorder}(source, kind, entity, key, tenant, ({payload})::json, headers, ({created})::timestamptz, {noted}, ({born})::bigint);
{back}    return null;
end
",
        kind = event.kind,
        entity = event.entity,
        key = event.key,
        tenant = event.tenant,
        fit = fit(mapping, "new"),
        row_payload = mapping.value(&mapping.payload, "new"),
        id_column = literal(&mapping.id.name),
        headers = put_headers(mapping, &event.headers),
        source_id = event.source_id,
        payload = event.payload,
        recorder = Recorder::of_outbox(&mapping.shape).function,
        noted = mapping.has_lifecycle(),
        born = born.as_deref().unwrap_or("null"),
    )
}

/// Columns that go or get another name or type do not fail an insert: then the headers are made of what there is, but for what would
/// have to be computed.
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
        headers := postrider.captured_headers(kind, postrider.other_fields(postrider.unknown_fields(tg_relid,
            array[{}] || array(select a.attname::text from pg_attribute a where a.attrelid = tg_relid and a.attgenerated = 'v'), new, new, false), {id}));
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
    const ALL: [(&str, &str); 6] = [
        ("timezone", "UTC"),
        ("intervalstyle", "iso_8601"),
        ("extra_float_digits", "1"),
        ("bytea_output", "hex"),
        ("datestyle", "ISO, MDY"),
        ("quote_all_identifiers", "off"),
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
