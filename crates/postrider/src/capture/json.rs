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

/// Settings of the session on which the text of this column depends, with the value that is wanted.
///
/// They are looked at in every call and set only where they differ: a `set` of the function would cost 4 µs each, always.
pub(crate) fn settings(columns: &[Column]) -> Vec<(&'static str, &'static str)> {
    // What hides inside an array, a composite or a range is not looked for.
    let nested = |column: &Column| column.type_kind != b'b'.cast_signed() || column.base_type.ends_with("[]");
    let any = |types: &[&str]| {
        columns.iter().any(|column| types.contains(&column.base_type.as_str()) || nested(column))
    };
    let mut settings = Vec::new();
    if any(&["timestamp with time zone", "time with time zone"]) {
        settings.push(("timezone", "UTC"));
    }
    if any(&["interval"]) {
        settings.push(("intervalstyle", "iso_8601"));
    }
    if any(&["real", "double precision"]) {
        settings.push(("extra_float_digits", "1"));
    }
    if any(&[]) {
        settings.push(("bytea_output", "hex"));
        // What is inside a range is written as text.
        settings.push(("datestyle", "ISO, MDY"));
    }
    settings
}

/// Whether a setting, kept in `was_NAME`, is another than the wanted one.
///
/// Debian's servers say `Etc/UTC`, and setting it back and forth would cost 4 µs a row or more.
pub(super) fn differs(name: &str, wanted: &str) -> String {
    if name == "timezone" {
        format!("was_{name} not in ('{wanted}', 'Etc/{wanted}')")
    } else {
        format!("was_{name} <> '{wanted}'")
    }
}

/// Whether the value has changed, exactly: 1.0 and 1.00 are equal and not the same.
pub(super) fn changed(column: &Column) -> String {
    let ident = &column.ident;
    if column.equality_is_identity {
        format!("old.{ident} is distinct from new.{ident}")
    } else {
        format!("record_image_ne(row(old.{ident}), row(new.{ident}))")
    }
}

/// What stands before a value, as SQL.
pub(super) fn label(before: &str, name: &str) -> String {
    literal(&format!("{before}{}:", serde_json::Value::from(name)))
}
