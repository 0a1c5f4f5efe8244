//! The row that a captured one hangs on: as it is, as it was if it has just gone, or as it was when an event was kept.

use std::fmt::Write as _;

use super::declaration::{OnFailure, Parent};
use super::departed;
use super::expressions::mentions;
use super::generate::{Generator, literal};
use super::row::is_another;
use super::shape::{Column, ParentShape};

impl Generator<'_> {
    pub(super) fn parent_variables(&self, out: &mut String) -> std::fmt::Result {
        let Some(parent) = &self.shape.parent else { return Ok(()) };
        out.push_str("    parent record;\n");
        if !self.is_kept {
            // Not of the parent's type, and of no other that may go: what is named here is looked for before any handler is at work.
            let key = parent.key().and_then(|key| key.lasting_type.as_deref()).unwrap_or("record");
            writeln!(
                out,
                "    parent_key {key};\n    parent_row json;\n    -- Null while nobody has looked.\n    has_parent boolean;\n    parents_seen bigint;"
            )?;
        }
        Ok(())
    }

    /// Columns of the parent that matter.
    pub(super) fn of_parent(&self) -> Vec<&Column> {
        let Some(parent) = &self.shape.parent else { return Vec::new() };
        let expressions = self.expressions();
        let whole = expressions.iter().any(|expression| named_columns(expression).is_none());
        let matters =
            |column: &&Column| whole || column.name == parent.column || mentions(&expressions, column);
        parent.columns.iter().filter(matters).collect()
    }

    /// Finds the parent, in the block that has the row's columns.
    pub(super) fn parent(&self, out: &mut String) -> std::fmt::Result {
        let (Some(declared), Some(parent)) = (&self.table.parent, &self.shape.parent) else { return Ok(()) };
        if self.is_kept {
            return self.parent_that_was_kept(out, parent);
        }
        let (label, name, ident) = (self.label, &parent.name, &parent.ident);
        if self.handled {
            let others: Vec<String> = self
                .of_parent()
                .into_iter()
                .map(|column| is_another(&format!("(null::{name}).{}", column.ident), column))
                .collect();
            writeln!(
                out,
                "                if {} then\n                    raise datatype_mismatch using message = 'the columns of {} have other types than this trigger was made for';\n                end if;",
                others.join("\n                    or "),
                name.replace('\'', "''")
            )?;
        }
        let kind = parent.key().map(|key| format!("::{}", key.any_type)).unwrap_or_default();
        let key = self.parent_key(out, declared, parent, &kind)?;
        let is_it = format!("p.{ident} {} {key}", parent.equal());
        // They are counted, because FOUND may be a column here.
        writeln!(
            out,
            "                select p.* into {label}.parent from {name} p where {is_it};
                get diagnostics {label}.parents_seen = row_count;
                if {label}.parents_seen = 0 then
                    {label}.parent_row := {departed};
                    select {read} where {is_it};
                    get diagnostics {label}.parents_seen = row_count;{forgotten}
                end if;
                {label}.has_parent := {label}.parents_seen > 0;",
            departed = gone(parent, &key),
            forgotten = self.refuse_forgotten(parent, &key),
            read = self.read(&format!("{label}.parent_row")),
        )
    }

    /// Whether a parent that nobody finds may be one that has gone and could not be remembered, where that happens.
    fn is_forgotten(&self, key: &str) -> Option<String> {
        let survives = self.handled && self.table.on_failure == OnFailure::Record;
        survives.then(|| format!("{key} is not null and {}", departed::HAS_FORGOTTEN))
    }

    /// Then there is no event of "no parent": it is kept.
    fn refuse_forgotten(&self, parent: &ParentShape, key: &str) -> String {
        self.is_forgotten(key).map_or_else(String::new, |is_forgotten| {
            format!(
                "
                    if {}.parents_seen = 0 and {is_forgotten} then
                        raise no_data_found using message = {};
                    end if;",
                self.label,
                literal(&format!("a row of {} has gone and could not be remembered", parent.name))
            )
        })
    }

    /// The value that the parent is known by, and its name. By way of a variable: inside a query a column of the parent would come
    /// before one of the row.
    fn parent_key(
        &self,
        out: &mut String,
        declared: &Parent,
        parent: &ParentShape,
        kind: &str,
    ) -> Result<String, std::fmt::Error> {
        let (label, on) = (self.label, self.over("captured", &declared.on));
        if parent.key().is_some_and(|key| key.lasting_type.is_none()) {
            writeln!(out, "                select {on}{kind} as \"key\" into {label}.parent_key;")?;
            return Ok(format!("{label}.parent_key.\"key\""));
        }
        writeln!(out, "                {label}.parent_key := {on};")?;
        Ok(format!("{label}.parent_key"))
    }

    /// In a handler: the parent of an event that is to be kept, where the function has not come to it. Later it may be another, or gone.
    pub(super) fn look_for_parent(&self, out: &mut String) -> std::fmt::Result {
        let (Some(declared), Some(parent)) = (&self.table.parent, &self.shape.parent) else { return Ok(()) };
        let label = self.label;
        writeln!(
            out,
            "        if {label}.has_parent is null and tg_op <> 'TRUNCATE' then
            if tg_op = 'DELETE' then new := old; end if;
            begin
                <<{}>>
                declare",
            self.shape.alias
        )?;
        for (ident, kind) in self.variables_for(&[declared.on.as_str()]) {
            writeln!(out, "                {ident} constant {kind} := captured.{ident};")?;
        }
        out.push_str("                begin\n");
        // Without the name of a type: that may be what has changed.
        let key = self.parent_key(out, declared, parent, "")?;
        writeln!(
            out,
            "                select postrider.row_json(p, {table}::regclass) into {label}.parent_row from {name} p where p.{ident} {equal} {key};
                if {label}.parent_row is null then
                    {label}.parent_row := {departed};
                end if;
                {label}.has_parent := {label}.parent_row is not null{or_forgotten};
                end;
            exception when others then
                {otherwise}
            end;
        end if;",
            name = parent.name,
            table = literal(&parent.name),
            ident = parent.ident,
            equal = parent.equal(),
            departed = gone(parent, &key),
            // Then nobody knows.
            or_forgotten = self
                .is_forgotten(&key)
                .map_or_else(String::new, |is_forgotten| format!(" or nullif({is_forgotten}, true)")),
            otherwise = self.by_reference(declared),
        )
    }

    /// Where what leads to the parent has other names now: by the foreign key, if there is one. If not, whoever records the event later
    /// is told that nobody knows.
    fn by_reference(&self, declared: &Parent) -> String {
        let (label, on) = (self.label, declared.on.trim());
        // A partition may have other numbers than its table.
        let by = self
            .shape
            .columns
            .iter()
            .find(|column| !self.shape.partitioned && (column.bare == on || column.ident == on));
        by.map_or_else(
            || "null;".to_owned(),
            |Column { number, .. }| {
                format!(
                    "{label}.parent_row := postrider.referred_row(captured, tg_relid, {number}::smallint);
                {label}.has_parent := nullif({label}.parent_row is not null, false);"
                )
            },
        )
    }

    /// What is kept of the parent: arguments of `record_failure`.
    pub(super) fn parent_to_keep(&self) -> String {
        let Some(parent) = &self.shape.parent else { return String::new() };
        let (label, table) = (self.label, literal(&parent.name));
        format!(
            ", case when {label}.has_parent then coalesce({label}.parent_row, postrider.row_json({label}.parent, to_regclass({table}))) when not {label}.has_parent then 'null'::json end, to_regclass({table})"
        )
    }

    /// Of an event that was kept: never a parent that is another by now.
    fn parent_that_was_kept(&self, out: &mut String, parent: &ParentShape) -> std::fmt::Result {
        const KEPT: &str = "postrider_recapture.kept_parent";
        let name = parent.name.replace('\'', "''");
        let required: Vec<&str> = self.required().map(|column| column.literal.as_str()).collect();
        writeln!(
            out,
            "                if {KEPT} is null then
                    raise no_data_found using message = 'the row of {name} that it hung on could not be kept with it, and with another one the event might be wrong: put that row as JSON into parent_row of its line in postrider.capture_failures';
                end if;
                if {KEPT}::text <> 'null' and exists (select from unnest(array[{required}]::text[]) c (name) where {KEPT} -> c.name is null) then
                    raise no_data_found using message = 'the row of {name} that was kept with it has not all the columns that the declaration names now: put them into parent_row of its line in postrider.capture_failures';
                end if;
                select {read} where {KEPT}::text <> 'null';",
            required = required.join(", "),
            read = self.read(&format!("nullif({KEPT}::text, 'null')::json")),
        )
    }

    /// Columns of the parent without which an event might be wrong, as they are in a row's JSON.
    fn required(&self) -> impl Iterator<Item = &Column> {
        let named: Option<Vec<String>> = self
            .expressions()
            .into_iter()
            .map(named_columns)
            .collect::<Option<Vec<_>>>()
            .map(|names| names.concat());
        let parent = self.shape.parent.as_ref();
        let computed: Vec<&str> = parent
            .into_iter()
            .flat_map(|parent| &parent.columns)
            .filter(|column| named.as_ref().is_none_or(|named| named.contains(&column.name)))
            .filter_map(|column| column.r#virtual.as_deref())
            .collect();
        parent.into_iter().flat_map(|parent| &parent.columns).filter(move |column| {
            column.r#virtual.is_none()
                && (named.as_ref().is_none_or(|named| named.contains(&column.name))
                    || mentions(&computed, column))
        })
    }

    /// The rest of a query that reads the parent from its JSON: the columns that matter and no others, whose types may have changed, and
    /// what is computed of them.
    fn read(&self, row: &str) -> String {
        let columns = self.of_parent();
        let computed: Vec<&str> = columns.iter().filter_map(|column| column.r#virtual.as_deref()).collect();
        let stored: Vec<String> = self
            .shape
            .parent
            .iter()
            .flat_map(|parent| &parent.columns)
            .filter(|column| {
                column.r#virtual.is_none()
                    && (columns.iter().any(|other| other.name == column.name) || mentions(&computed, column))
            })
            .map(|column| format!("{} {}{}", column.ident, column.any_type, departed::collation(column)))
            .collect();
        let fields: Vec<String> = columns
            .iter()
            .map(|Column { ident, type_name, r#virtual, .. }| {
                r#virtual
                    .as_ref()
                    .map_or_else(|| format!("p.{ident}"), |by| format!("({by})::{type_name} as {ident}"))
            })
            .collect();
        format!(
            "{} into {}.parent from json_to_record({row}) as p ({})",
            fields.join(", "),
            self.label,
            stored.join(", ")
        )
    }
}

/// The JSON of a parent that has gone in this transaction.
fn gone(parent: &ParentShape, key: &str) -> String {
    let sought = parent.key().map_or_else(|| "null".to_owned(), |column| departed::known_by(column, key));
    format!(
        "postrider.departed_row({}::regclass, {}, {sought})",
        literal(&parent.name),
        literal(&parent.column)
    )
}

/// The columns of the parent that an expression names; nothing where it may speak of the whole row.
fn named_columns(expression: &str) -> Option<Vec<String>> {
    const PARENT: &str = "parent";
    let is_word = |character: char| character.is_alphanumeric() || character == '_' || character == '$';
    let mut names = Vec::new();
    for (place, _) in expression.to_ascii_lowercase().match_indices(PARENT) {
        let behind = &expression[place + PARENT.len()..];
        if expression[..place].ends_with(is_word) || behind.starts_with(is_word) {
            continue;
        }
        let column = behind.strip_prefix('"').unwrap_or(behind).strip_prefix('.')?;
        let name = match column.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').filter(|(_, rest)| !rest.starts_with('"'))?.0.to_owned(),
            None => column.split(|character| !is_word(character)).next()?.to_lowercase(),
        };
        if name.is_empty() {
            return None;
        }
        names.push(name);
    }
    Some(names)
}
