//! The trigger function of a captured table, as text.
//!
//! Columns are spelled out, nothing is dynamic. Expressions of the declaration see the row as variables of a block that bears the
//! table's name, so they need no query of their own: one `select … from (select new.*)` costs as much as all the rest.
//!
//! What a row costs beside the INSERT is the number of expressions and how much text they copy: so there is one expression for what
//! changed and one for the row, each put together by one call.

use std::fmt::Write as _;

use super::declaration::{OnFailure, Table};
use super::expressions::{declared, primary_key};
use super::failure::{Error, Result};
use super::making::PLAIN_STRINGS;
use super::recorder::Recorder;
use super::shape::{Column, Shape};
use super::{json, truncate};

/// What is caught although writes are to be refused: what the function or the declaration names is gone, is another thing now or is
/// there twice. Nobody's write fails for that, the event is kept. What is wrong with a value is no such thing.
const ANOTHER_SHAPE: &str = "undefined_column or undefined_table or undefined_function or undefined_object or invalid_schema_name or datatype_mismatch or ambiguous_column or ambiguous_function";

/// The name of our triggers. First in the alphabet, because triggers fire by name: before one that changes the row again, whose
/// event must come second, and before the cascades of foreign keys.
pub const TRIGGER: &str = "00_postrider";

/// A string as SQL wants it.
pub(crate) fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// The body of the trigger's function.
pub fn function(table: &Table, shape: &Shape) -> Result<String> {
    Generator::new(table, shape)?.body()
}

/// The same for a row that comes as an argument: what cannot be recorded is an error.
pub(super) fn snapshot(table: &Table, shape: &Shape) -> Result<String> {
    Generator { handled: false, ..Generator::new(table, shape)? }.body()
}

/// The same for a row that was kept, whose parent comes as an argument too, and the columns that it had.
pub(super) fn again(table: &Table, shape: &Shape) -> Result<String> {
    Generator { handled: false, is_kept: true, ..Generator::new(table, shape)? }.body()
}

pub(super) struct Generator<'a> {
    pub(super) table: &'a Table,
    pub(super) shape: &'a Shape,
    key: String,
    /// Of the outer block: expressions see the row in a block that bears the table's name, which may be this one.
    pub(super) label: &'static str,
    /// In the payload.
    pub(super) kept: Vec<&'a Column>,
    /// Whether failures are handled where they happen.
    pub(super) handled: bool,
    /// Whether the row was kept, and is not the one of now.
    pub(super) is_kept: bool,
}

impl<'a> Generator<'a> {
    fn new(table: &'a Table, shape: &'a Shape) -> Result<Self> {
        for name in &table.omit {
            shape.column(table, "omit", name)?;
        }
        for name in &table.ignore {
            shape.column(table, "ignore", name)?;
        }
        for name in table.changes.keys() {
            shape.column(table, "changes", name)?;
        }
        if let Some(name) = &table.soft_delete {
            let column = shape.column(table, "soft_delete", name)?;
            if column.never_null {
                return Err(Error::NeverNull { table: table.name.clone(), column: name.clone() });
            }
        }
        let key = match &table.key {
            Some(key) => key.clone(),
            None => primary_key(shape).ok_or_else(|| Error::NoKey { table: table.name.clone() })?,
        };
        let kept: Vec<&Column> =
            shape.columns.iter().filter(|column| !table.omit.contains(&column.name)).collect();
        if let Some(twice) = kept.iter().find(|column| table.extra.contains_key(&column.name)) {
            return Err(Error::ExtraColumn { table: table.name.clone(), name: twice.name.clone() });
        }
        let label = if shape.alias == "\"capture\"" { "captures" } else { "capture" };
        Ok(Self { table, shape, key, label, kept, handled: true, is_kept: false })
    }

    fn body(&self) -> Result<String> {
        let mut body = String::new();
        self.write(&mut body).map_err(|_| Error::NoTable { table: self.table.name.clone() })?;
        Ok(body)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let record = self.handled && self.table.on_failure == OnFailure::Record;
        writeln!(out, "\n#variable_conflict use_column\n<<{}>>\ndeclare", self.label)?;
        self.variables(out)?;
        out.push_str("begin\n");
        out.push_str(&truncate::first(self.table, self.shape, self.handled));
        self.settle(out)?;
        // What is read of the row is apart from what is written: a block with a handler that writes takes an xid of its own.
        out.push_str("    begin\n");
        self.row_as_expected(out)?;
        self.what_happened(out)?;
        self.what_it_means(out)?;
        if self.handled {
            self.wait(out)?;
            // Another name for a column, or another type under the plans of an open session: nobody's write fails for that. The
            // event is kept until the trigger is generated anew.
            let caught = if record { "others" } else { ANOTHER_SHAPE };
            writeln!(out, "    exception when {caught} then")?;
            self.look_for_parent(out)?;
            writeln!(out, "        {};\n        verbs := null;", self.keep_failure())?;
        }
        out.push_str("    end;\n");
        self.append(out, record)?;
        self.unsettle(out)?;
        out.push_str("    return null;\nend\n");
        Ok(())
    }

    fn variables(&self, out: &mut String) -> std::fmt::Result {
        if self.has_backslashes() {
            out.push_str(PLAIN_STRINGS);
        }
        out.push_str("    verbs text[];\n    verb text;\n    previous text;\n    changed boolean;\n");
        // A column may be called `new`.
        out.push_str("    captured alias for new;\n");
        out.push_str("    kind text;\n    key text;\n    tenant text;\n    headers json;\n    data text;\n    payload json;\n");
        out.push_str("    event_id uuid;\n");
        let root = if self.shape.partitioned { "pg_partition_root(tg_relid)" } else { "tg_relid" };
        // A column that came and went leaves its number behind, and the next one that comes has a later one: this function knows of
        // a number also when its column is gone. It costs less than a query.
        writeln!(
            out,
            "    -- A column has come since this was generated; it may have gone again, and others be there.\n    grown constant boolean := pg_describe_object('pg_class'::regclass, {root}, {}) is not null;",
            self.shape.next_attribute
        )?;
        self.styles(out)?;
        self.parent_variables(out)
    }

    /// Everything that is declared in SQL.
    pub(super) fn expressions(&self) -> Vec<&str> {
        declared(self.table).into_iter().map(|(_, expression)| expression).collect()
    }

    /// Whether a string of somebody else's may have one, which a session can take for an escape.
    fn has_backslashes(&self) -> bool {
        let parents = self.shape.parent.iter().flat_map(|parent| &parent.columns);
        let computed =
            self.shape.columns.iter().chain(parents).filter_map(|column| column.r#virtual.as_deref());
        self.expressions().into_iter().chain(computed).any(|expression| expression.contains('\\'))
    }

    /// Which events there are, and what was before.
    fn what_happened(&self, out: &mut String) -> std::fmt::Result {
        let verbs = &self.table.verbs;
        let array = |verb: &Option<String>| {
            verb.as_ref().map_or_else(|| "null".to_owned(), |verb| format!("array[{}]", literal(verb)))
        };
        let soft = self.table.soft_delete.as_ref().map(|name| self.ident(name));
        writeln!(out, "        if tg_op = 'INSERT' then\n            verbs := {};", array(&verbs.insert))?;
        // From here on the row that counts is `new`.
        out.push_str("        elsif tg_op = 'DELETE' then\n            new := old;\n");
        match &soft {
            Some(soft) => writeln!(
                out,
                "            if old.{soft} is null then verbs := {}; else verbs := {}; end if;",
                array(&verbs.delete),
                array(&verbs.purge)
            )?,
            None => writeln!(out, "            verbs := {};", array(&verbs.delete))?,
        }
        out.push_str("        elsif tg_op = 'UPDATE' then\n");
        self.what_changed(out)?;
        let update = verbs.update.as_ref().map(|verb| literal(verb));
        match &soft {
            Some(soft) => {
                writeln!(
                    out,
                    "            if old.{soft} is null and new.{soft} is not null then verbs := {};",
                    array(&verbs.delete)
                )?;
                writeln!(
                    out,
                    "            elsif old.{soft} is not null and new.{soft} is null then verbs := {};",
                    array(&verbs.restore)
                )?;
                if let Some(update) = update {
                    writeln!(out, "            elsif changed then verbs := {update}::text || verbs;")?;
                }
                out.push_str("            end if;\n");
            }
            None => {
                if let Some(update) = update {
                    writeln!(out, "            if changed then verbs := {update}::text || verbs; end if;")?;
                }
            }
        }
        out.push_str("        end if;\n");
        Ok(())
    }

    /// What was before, whether that alone is news, and the events of single columns.
    fn what_changed(&self, out: &mut String) -> std::fmt::Result {
        let previous = self.kept.iter().map(|column| {
            let was = json::text(column, &format!("old.{}", column.ident));
            format!("case when {} then {} || {was} end", json::changed(column), json::label("", &column.name))
        });
        writeln!(out, "            previous := {};", json::joined(&previous.collect::<Vec<_>>()))?;
        let mut news: Vec<String> = Vec::new();
        // Several columns may share one event.
        let mut single: Vec<(&str, Vec<String>)> = Vec::new();
        for column in &self.shape.columns {
            let change = self.table.changes.get(&column.name);
            if let Some(change) = change {
                match single.iter_mut().find(|(verb, _)| *verb == change.verb) {
                    Some((_, columns)) => columns.push(json::changed(column)),
                    None => single.push((&change.verb, vec![json::changed(column)])),
                }
            }
            if change.map_or_else(|| !self.table.ignore.contains(&column.name), |change| change.beside) {
                news.push(json::changed(column));
            }
        }
        for (verb, columns) in single {
            let verb = literal(verb);
            writeln!(
                out,
                "            if {} then verbs := verbs || {verb}::text; end if;",
                columns.join(" or ")
            )?;
        }
        let news = if news.is_empty() { "false".to_owned() } else { news.join("\n                or ") };
        writeln!(out, "            changed := {news};")?;
        writeln!(
            out,
            "            if grown and old *<> new then
                declare
                    unknown constant text := postrider.unknown_fields(tg_relid, {}, old, new, true);
                begin
                    previous := concat_ws(',', nullif(previous, ''), nullif(substr({}, 2), ''));
                    changed := changed or unknown <> '';
                end;
            end if;",
            self.known(),
            if self.table.extra.is_empty() {
                "unknown".to_owned()
            } else {
                format!("postrider.unknown_fields(tg_relid, {}, old, new, true)", self.told())
            }
        )
    }

    /// Type, key, tenant, headers and data, from the row that counts.
    fn what_it_means(&self, out: &mut String) -> std::fmt::Result {
        let table = self.table;
        out.push_str("        if verbs is not null then\n");
        writeln!(out, "            <<{}>>\n            declare", self.shape.alias)?;
        for (ident, kind) in self.variables_for(&self.expressions()) {
            writeln!(out, "                {ident} constant {kind} := captured.{ident};")?;
        }
        out.push_str("            begin\n");
        self.parent(out)?;
        let label = self.label;
        let kind =
            table.r#type.as_ref().map_or_else(|| literal(&table.entity), |kind| self.over("captured", kind));
        writeln!(out, "                {label}.kind := {kind};")?;
        let key = match &table.key {
            Some(key) => self.over("captured", key),
            None => format!("({}\n)", self.key),
        };
        writeln!(out, "                {label}.key := {key};")?;
        if let Some(tenant) = &table.tenant {
            writeln!(out, "                {label}.tenant := {};", self.over("captured", tenant))?;
        }
        let data = self.over_some("captured", &self.data(), table.extra.values());
        writeln!(out, "                {label}.data := {data};")?;
        if !table.headers.is_empty() || !table.context.is_empty() {
            let headers = self.over_some("captured", &self.headers(), table.headers.values());
            writeln!(out, "                {label}.headers := {headers};")?;
        }
        out.push_str("            end;\n");
        let unknown =
            format!("postrider.unknown_fields(tg_relid, {}, captured, captured, false)", self.told());
        let grown = if self.has_data() {
            format!("left(data, -1) || {unknown} || '}}'")
        } else {
            format!("'{{' || substr({unknown}, 2) || '}}'")
        };
        writeln!(out, "            if grown then\n                data := {grown};\n            end if;")?;
        if self.is_kept {
            self.leave_out_what_came_later(out)?;
        }
        out.push_str("        end if;\n");
        Ok(())
    }

    /// A column that came after the row was kept: nobody knows what it would have had there, and an event of that time has none of it.
    fn leave_out_what_came_later(&self, out: &mut String) -> std::fmt::Result {
        let columns: Vec<&str> = self.kept.iter().map(|column| column.literal.as_str()).collect();
        let columns = format!("array[{}]::text[]", columns.join(", "));
        writeln!(
            out,
            "            if not kept_columns @> {columns} then
                data := (
                    select '{{' || coalesce(string_agg(to_json(f.key)::text || ':' || f.value::text, ',' order by f.place), '') || '}}'
                    from json_each(data::json) with ordinality f (key, value, place)
                    where f.key = any (kept_columns) or f.key <> all ({columns}));
            end if;"
        )
    }

    fn append(&self, out: &mut String, record: bool) -> std::fmt::Result {
        let recorder = Recorder::of(self.table, self.shape).function;
        out.push_str(&truncate::event(
            self.table,
            self.shape,
            self.handled,
            &self.context(),
            &self.context_headers(),
        ));
        out.push_str("    if verbs is not null then\n");
        if record {
            out.push_str("    begin\n");
        }
        writeln!(
            out,
            "        payload := concat('{{\"data\":', coalesce(data, 'null'), ',\"previous_attributes\":{{', previous, '}}}}');
        headers := postrider.captured_headers(kind, headers);
        foreach verb in array verbs loop
            event_id := {recorder}(nullif(kind, '') || '.' || verb, key, tenant, payload, headers);
        end loop;"
        )?;
        if record {
            writeln!(out, "    exception when others then\n        {};\n    end;", self.keep_failure())?;
        }
        out.push_str("    end if;\n");
        Ok(())
    }

    /// Keeps what recording the event later takes.
    fn keep_failure(&self) -> String {
        self.keep("sqlstate, sqlerrm")
    }

    pub(super) fn keep(&self, reason: &str) -> String {
        format!(
            "perform postrider.record_failure(tg_relid, tg_op, postrider.row_json(old, tg_relid), case when tg_op <> 'DELETE' then postrider.row_json(new, tg_relid) end, {}, {reason}, key{})",
            self.context(),
            self.parent_to_keep()
        )
    }

    /// The settings of the session that are part of an event.
    fn context(&self) -> String {
        let settings: Vec<String> = std::iter::once("postrider.context")
            .chain(self.table.context.iter().map(String::as_str))
            .map(|name| format!("{0}, current_setting({0}, true)", literal(name)))
            .collect();
        format!("json_build_object({})", settings.join(", "))
    }

    fn ident(&self, name: &str) -> &str {
        self.shape.columns.iter().find(|column| column.name == name).map_or("", |column| &column.ident)
    }

    fn known(&self) -> String {
        let names: Vec<&str> = self.shape.columns.iter().map(|column| column.literal.as_str()).collect();
        format!("array[{}]", names.join(", "))
    }

    /// The same with the fields that are declared beside them: a column that comes under such a name has not its place.
    fn told(&self) -> String {
        if self.table.extra.is_empty() {
            return self.known();
        }
        let extra: Vec<String> = self.table.extra.keys().map(|name| literal(name)).collect();
        format!("{} || array[{}]::text[]", self.known(), extra.join(", "))
    }
}
