//! How a column's value becomes JSON.

use super::generate::literal;
use super::shape::Column;

/// The JSON of a value as an SQL expression of type text, never null.
pub(super) fn text(column: &Column, of: &str) -> String {
    format!("coalesce({}, 'null')", nullable(column, of))
}

/// The same, null where the value is.
///
/// What needs neither quotes nor escapes is cast: half the price of `to_json`.
pub(super) fn nullable(column: &Column, of: &str) -> String {
    match column.base_type.as_str() {
        "smallint" | "integer" | "bigint" | "boolean" => format!("{of}::text"),
        "uuid" => format!("'\"' || {of}::text || '\"'"),
        _ => format!("to_json({})::text", value(column, of)),
    }
}

/// The JSON of any expression, as text: its type is the server's to find out, also where it is a bare string.
pub(super) fn any(expression: &str) -> String {
    format!("substr(left(json_build_array(({expression}\n))::text, -1), 2)")
}

/// Texts with commas between them, without those that are null; empty if all are. A call takes a hundred arguments at most.
pub(super) fn joined(texts: &[String]) -> String {
    const TEXTS: usize = 99;
    if texts.is_empty() {
        return "''".to_owned();
    }
    let mut calls: Vec<String> =
        texts.chunks(TEXTS).map(|chunk| format!("concat_ws(',', {})", chunk.join(", "))).collect();
    if calls.len() == 1 {
        return calls.remove(0);
    }
    let calls: Vec<String> = calls.iter().map(|call| format!("nullif({call}, '')")).collect();
    joined(&calls)
}

/// The value that `to_json` and its kin are given.
pub(crate) fn value(column: &Column, value: &str) -> String {
    match column.base_type.as_str() {
        "bytea" => format!("postrider.base64({value})"),
        _ => value.to_owned(),
    }
}

/// Settings of the session on which the text of these columns depends, with the value that is wanted.
///
/// They are looked at in every call and set only where they differ: a `set` of the function would cost 4 µs each, always.
pub(crate) fn settings(columns: &[Column]) -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    if have(columns, &["timestamp with time zone", "time with time zone"]) {
        settings.push(TIME_ZONE);
    }
    if have(columns, &["interval"]) {
        settings.push(INTERVALS);
    }
    if have(columns, &["real", "double precision"]) {
        settings.push(FLOATS);
    }
    if have(columns, &["bytea"]) {
        settings.push(BYTES);
    }
    // As text, and so in a key, or inside a range.
    if have(columns, &["date", "timestamp without time zone", "timestamp with time zone"]) {
        settings.push(DATES);
    }
    if have(columns, &NAMES) {
        settings.push(QUOTES);
    }
    settings
}

const TIME_ZONE: (&str, &str) = ("timezone", "UTC");
const INTERVALS: (&str, &str) = ("intervalstyle", "iso_8601");
const FLOATS: (&str, &str) = ("extra_float_digits", "1");
const BYTES: (&str, &str) = ("bytea_output", "hex");
const DATES: (&str, &str) = ("datestyle", "ISO, MDY");
const QUOTES: (&str, &str) = ("quote_all_identifiers", "off");

/// Types whose text is a name.
const NAMES: [&str; 11] = [
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
];

/// Whether there is a column of one of these types. What hides inside an array, a composite or a range is not looked for.
fn have(columns: &[Column], types: &[&str]) -> bool {
    let nested = |column: &Column| column.type_kind != b'b'.cast_signed() || column.base_type.ends_with("[]");
    columns.iter().any(|column| types.contains(&column.base_type.as_str()) || nested(column))
}

/// The settings on which the columns and these expressions depend. An expression may make a text of anything: what sessions usually
/// have is always made sure of, which costs next to nothing. The time zone and the form of
/// intervals, which would be set back and forth, only where one speaks of time or asks a table.
pub(super) fn settings_with(columns: &[Column], expressions: &[&str]) -> Vec<(&'static str, &'static str)> {
    let speak_of = |words: &[&str]| {
        expressions.iter().any(|expression| {
            let expression = expression.to_lowercase();
            words.iter().any(|word| expression.contains(word))
        })
    };
    let found = settings(columns);
    let wanted = |setting: (&'static str, &'static str), also: bool| {
        (also || found.contains(&setting)).then_some(setting)
    };
    [
        wanted(TIME_ZONE, speak_of(&["time", "now", "select"])),
        wanted(INTERVALS, speak_of(&["interval", "age("])),
        wanted(FLOATS, !expressions.is_empty()),
        wanted(BYTES, !expressions.is_empty()),
        wanted(DATES, !expressions.is_empty()),
        wanted(QUOTES, !expressions.is_empty()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether a setting is another than the wanted one.
///
/// Debian's servers say `Etc/UTC`, and those of half the world `ISO, DMY`, which is written alike: setting it back and forth would
/// cost 4 µs a row or more.
pub(super) fn differs((name, wanted): (&str, &str), found: &str) -> String {
    match name {
        "timezone" => format!("{found} not in ('{wanted}', 'Etc/{wanted}')"),
        "datestyle" => format!("left({found}, 3) <> 'ISO'"),
        _ => format!("{found} <> '{wanted}'"),
    }
}

/// Whether the value has changed, exactly: 1.0 and 1.00 are equal and not the same.
///
/// Texts byte by byte: the column may get a collation that takes different ones for equal, and its type stays what it was.
pub(super) fn changed(column: &Column) -> String {
    let ident = &column.ident;
    if column.equality_is_identity {
        let exactly = match column.base_type.as_str() {
            "text" | "character varying" | "name" => " collate \"C\"",
            _ => "",
        };
        format!("old.{ident}{exactly} is distinct from new.{ident}{exactly}")
    } else {
        format!("record_image_ne(row(old.{ident}), row(new.{ident}))")
    }
}

/// What stands before a value, as SQL.
pub(super) fn label(before: &str, name: &str) -> String {
    literal(&format!("{before}{}:", serde_json::Value::from(name)))
}
