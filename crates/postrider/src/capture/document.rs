//! What an event says of its row: the row itself, and its headers.

use super::generate::{Generator, literal};
use super::json;

impl Generator<'_> {
    /// Whether anything of the row goes into the payload.
    pub(super) fn has_data(&self) -> bool {
        !self.kept.is_empty() || !self.table.extra.is_empty()
    }

    /// The row as JSON text. A call takes a hundred arguments at most.
    pub(super) fn data(&self) -> String {
        const FIELDS: usize = 48;
        if !self.has_data() {
            return "'{}'".to_owned();
        }
        let columns = self
            .kept
            .iter()
            .map(|column| (&column.name, json::text(column, &format!("captured.{}", column.ident))));
        let extra = self.table.extra.iter().map(|(name, expression)| (name, json::any(expression)));
        let fields: Vec<String> = columns
            .chain(extra)
            .enumerate()
            .map(|(place, (name, value))| {
                format!("{}, {value}", json::label(if place == 0 { "{" } else { "," }, name))
            })
            .collect();
        let parts: Vec<String> =
            fields.chunks(FIELDS).map(|chunk| format!("concat({})", chunk.join(", "))).collect();
        format!("{} || '}}'", parts.join(" || "))
    }

    /// Headers as JSON, null if there is none: `json_build_object` and `json_strip_nulls` would cost twice as much.
    pub(super) fn headers(&self) -> String {
        let declared = self.table.headers.iter().map(|(name, expression)| {
            let column = self.shape.columns.iter().find(|column| column.bare == expression.trim());
            let value = column.map_or_else(
                || json::any(expression),
                |column| json::nullable(column, &format!("captured.{}", column.ident)),
            );
            format!("{} || nullif({value}, 'null')", json::label("", name))
        });
        object(declared.chain(self.context_fields()))
    }

    /// The same of what no row is needed for.
    pub(super) fn context_headers(&self) -> String {
        object(self.context_fields())
    }

    fn context_fields(&self) -> impl Iterator<Item = String> {
        self.table.context.iter().map(|setting| {
            let name = setting.rsplit('.').next().unwrap_or(setting);
            let value = format!("to_json(nullif(current_setting({}, true), ''))::text", literal(setting));
            format!("{} || {value}", json::label("", name))
        })
    }
}

/// Fields as an object, null if there is none.
fn object(fields: impl Iterator<Item = String>) -> String {
    let fields: Vec<String> = fields.collect();
    if fields.is_empty() {
        return "null".to_owned();
    }
    format!("nullif('{{' || {} || '}}', '{{}}')", json::joined(&fields))
}
