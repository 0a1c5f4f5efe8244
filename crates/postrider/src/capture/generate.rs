//! The trigger function of a captured table, as text.
//!
//! Columns are spelled out, nothing is dynamic. Expressions of the declaration see the row as variables of a block that bears the
//! table's name, so they need no query of their own: one `select … from (select new.*)` costs as much as all the rest.
//!
//! What a row costs beside the INSERT is the number of expressions and how much text they copy: so there is one expression for what
//! changed and one for the row, each put together by one call.

use std::fmt::Write as _;

use super::declaration::{OnFailure, Table};
use super::expressions::{mentions, primary_key};
use super::failure::{Error, Result};
use super::shape::{Column, Shape};
use super::{json, truncate};

/// The name of our triggers. First in the alphabet, because triggers fire by name: before one that changes the row again, whose
/// event must come second, and before the cascades of foreign keys.
pub const TRIGGER: &str = "00_postrider";

/// Numbers of columns, behind those that are known, among which a new column is looked for.
const NUMBERS_AHEAD: i16 = 8;

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
pub(super) fn again(table: &Table, shape: &Shape) -> Result<String> {
    Generator { handled: false, ..Generator::new(table, shape)? }.body()
}

pub(super) struct Generator<'a> {
    pub(super) table: &'a Table,
    pub(super) shape: &'a Shape,
    key: String,
    /// In the payload.
    pub(super) kept: Vec<&'a Column>,
    /// Whether failures are handled where they happen.
    handled: bool,
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
            shape.column(table, "soft_delete", name)?;
        }
        let key = match &table.key {
            Some(key) => key.clone(),
            None => primary_key(shape).ok_or_else(|| Error::NoKey { table: table.name.clone() })?,
        };
        let kept = shape.columns.iter().filter(|column| !table.omit.contains(&column.name)).collect();
        Ok(Self { table, shape, key, kept, handled: true })
    }

    fn body(&self) -> Result<String> {
        let mut body = String::new();
        self.write(&mut body).map_err(|_| Error::NoTable { table: self.table.name.clone() })?;
        Ok(body)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let record = self.handled && self.table.on_failure == OnFailure::Record;
        out.push_str("\n#variable_conflict use_column\n<<capture>>\ndeclare\n");
        // So that another type makes it outdated: open sessions compile it again only when it is another one.
        let types: Vec<&str> = self.shape.columns.iter().map(|column| column.type_name.as_str()).collect();
        writeln!(
            out,
            "    -- Made for columns of the types {}",
            types.join(", ").replace(char::is_control, " ")
        )?;
        self.variables(out)?;
        out.push_str("begin\n");
        out.push_str(&truncate::first(self.table, self.shape, self.handled));
        for (name, wanted) in self.settings() {
            writeln!(
                out,
                "    if {} then perform set_config('{name}', '{wanted}', true); end if;",
                json::differs(name, wanted)
            )?;
        }
        // What is read of the row is apart from what is written: a block with a handler that writes takes an xid of its own.
        out.push_str("    begin\n");
        self.what_happened(out)?;
        self.what_it_means(out)?;
        if self.handled {
            // Another name for a column, or another type under the plans of an open session: nobody's write fails for that. The
            // event is kept until the trigger is generated anew.
            let caught = if record { "others" } else { "undefined_column or datatype_mismatch" };
            writeln!(
                out,
                "    exception when {caught} then\n        {};\n        verbs := null;",
                self.keep_failure()
            )?;
        }
        out.push_str("    end;\n");
        self.append(out, record)?;
        for (name, wanted) in self.settings() {
            writeln!(
                out,
                "    if {} then perform set_config('{name}', was_{name}, true); end if;",
                json::differs(name, wanted)
            )?;
        }
        out.push_str("    return null;\nend\n");
        Ok(())
    }

    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        json::settings(&self.shape.columns)
    }

    fn variables(&self, out: &mut String) -> std::fmt::Result {
        out.push_str("    verbs text[];\n    verb text;\n    previous text;\n    changed boolean;\n");
        // A column may be called `new`.
        out.push_str("    captured alias for new;\n");
        out.push_str("    kind text;\n    key text;\n    tenant text;\n    headers json;\n    data text;\n    payload json;\n");
        out.push_str("    event_id uuid;\n    slot smallint;\n    lane smallint;\n");
        let root = if self.shape.partitioned { "pg_partition_root(tg_relid)" } else { "tg_relid" };
        // A column that came and went leaves its number behind: the next one that comes has a later number. Looking for so many
        // costs a microsecond; a table that has lost more since is found by `plan` and by the relay's sweep all the same.
        let next: Vec<String> = (0..NUMBERS_AHEAD)
            .map(|ahead| {
                let number = self.shape.next_attribute.saturating_add(ahead);
                format!("has_column_privilege({root}, {number}::smallint, 'select')")
            })
            .collect();
        writeln!(
            out,
            "    -- A column has come since this was generated.\n    grown constant boolean := coalesce({}) is not null;",
            next.join(", ")
        )?;
        for (name, _) in self.settings() {
            writeln!(out, "    was_{name} constant text := current_setting('{name}');")?;
        }
        if let Some(parent) = &self.shape.parent {
            writeln!(out, "    parent {0};\n    parent_key {0}.{1}%type;", parent.name, parent.ident)?;
        }
        Ok(())
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
        for column in &self.shape.columns {
            let change = self.table.changes.get(&column.name);
            if let Some(change) = change {
                writeln!(
                    out,
                    "            if {} then verbs := verbs || {}::text; end if;",
                    json::changed(column),
                    literal(&change.verb)
                )?;
            }
            if change.map_or_else(|| !self.table.ignore.contains(&column.name), |change| change.beside) {
                news.push(json::changed(column));
            }
        }
        let news = if news.is_empty() { "false".to_owned() } else { news.join("\n                or ") };
        writeln!(out, "            changed := {news};")?;
        writeln!(
            out,
            "            if grown and old *<> new then
                declare
                    unknown constant text := postrider.unknown_fields(tg_relid, {}, old, new, true);
                begin
                    previous := concat_ws(',', nullif(previous, ''), nullif(substr(unknown, 2), ''));
                    changed := changed or unknown <> '';
                end;
            end if;",
            self.known()
        )
    }

    /// Type, key, tenant, headers and data, from the row that counts.
    fn what_it_means(&self, out: &mut String) -> std::fmt::Result {
        let table = self.table;
        out.push_str("        if verbs is not null then\n");
        writeln!(out, "            <<{}>>\n            declare", self.shape.alias)?;
        let mut expressions: Vec<&str> = vec![&self.key];
        expressions.extend(table.r#type.as_deref());
        expressions.extend(table.tenant.as_deref());
        expressions.extend(table.extra.values().map(String::as_str));
        expressions.extend(table.headers.values().map(String::as_str));
        expressions.extend(table.parent.as_ref().map(|parent| parent.on.as_str()));
        for column in &self.shape.columns {
            if expressions.iter().any(|expression| mentions(expression, &column.name)) {
                writeln!(
                    out,
                    "                {} constant {} := captured.{};",
                    column.ident, column.type_name, column.ident
                )?;
            }
        }
        out.push_str("            begin\n");
        if let (Some(declared), Some(parent)) = (&table.parent, &self.shape.parent) {
            // By way of a variable: inside the query a column of the parent would come before one of the row.
            writeln!(
                out,
                "                capture.parent_key := ({2}\n);\n                select p.* into parent from {0} p where p.{1} = capture.parent_key;\n                if not found then\n                    select (json_populate_record(null::{0}, d.departed)).* into parent from postrider.departed d\n                    where d.xid = pg_current_xact_id() and d.relation = coalesce(pg_partition_root({3}::regclass), {3}::regclass)\n                      and d.field = {4} and d.key = capture.parent_key::text;\n                end if;",
                parent.name,
                parent.ident,
                declared.on,
                literal(&parent.name),
                literal(&parent.column)
            )?;
        }
        let kind = table.r#type.as_ref().map_or_else(|| literal(&table.entity), |kind| format!("({kind}\n)"));
        writeln!(out, "                capture.kind := {kind};")?;
        writeln!(out, "                capture.key := ({}\n);", self.key)?;
        if let Some(tenant) = &table.tenant {
            writeln!(out, "                capture.tenant := ({tenant}\n);")?;
        }
        writeln!(out, "                capture.data := {};", self.data())?;
        if !table.headers.is_empty() || !table.context.is_empty() {
            writeln!(out, "                capture.headers := {};", self.headers())?;
        }
        out.push_str("            end;\n");
        let unknown =
            format!("postrider.unknown_fields(tg_relid, {}, captured, captured, false)", self.known());
        let grown = if self.has_data() {
            format!("left(data, -1) || {unknown} || '}}'")
        } else {
            format!("'{{' || substr({unknown}, 2) || '}}'")
        };
        writeln!(out, "            if grown then\n                data := {grown};\n            end if;")?;
        out.push_str("        end if;\n");
        Ok(())
    }

    fn append(&self, out: &mut String, record: bool) -> std::fmt::Result {
        let entity = literal(&self.table.entity);
        out.push_str(&truncate::event(self.table, self.shape, self.handled, &self.context()));
        out.push_str("    if verbs is not null then\n");
        if record {
            out.push_str("    begin\n");
        }
        out.push_str(
            "        payload := concat('{\"data\":', coalesce(data, 'null'), ',\"previous_attributes\":{', previous, '}}');
        headers := postrider.captured_headers(kind, headers);
        slot := coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7;
        foreach verb in array verbs loop
            event_id := postrider.uuid7();
            lane := case when key is null then uuid_hash_extended(event_id, 0) else hashtextextended(key collate \"C\", 0) end & (postrider.lanes() - 1);
            verb := kind || '.' || verb;
            if verb is null or octet_length(verb) > 255 or octet_length(key) > 1024 or octet_length(tenant) > 255 then
                perform postrider.refuse_event(verb, 0, key, tenant, null, null);
            end if;
            insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
            values (capture.slot, capture.lane, capture.event_id, capture.verb, ",
        );
        write!(out, "{entity}")?;
        out.push_str(
            ", capture.key, capture.tenant, capture.payload, capture.headers);
        end loop;
        if coalesce(pg_sequence_last_value('postrider.armed'), 0) > coalesce(pg_sequence_last_value('postrider.disarmed'), 0) then
            perform postrider.ring_bell();
        end if;\n",
        );
        if record {
            writeln!(out, "    exception when others then\n        {};\n    end;", self.keep_failure())?;
        }
        out.push_str("    end if;\n");
        Ok(())
    }

    /// Keeps what recording the event later takes.
    fn keep_failure(&self) -> String {
        format!(
            "perform postrider.record_failure(tg_relid, tg_op, to_json(old), case when tg_op <> 'DELETE' then to_json(new) end, {}, sqlstate, sqlerrm)",
            self.context()
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
}
