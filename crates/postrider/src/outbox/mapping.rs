//! The declaration and the table brought together.

use sqlx::{Connection as _, PgConnection};

use super::declaration::{Columns, Mode, Outbox};
use super::failure::{Error, Result};
use crate::capture::{Column, Shape, Table, mentions};

/// A table whose columns are found and fit.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    pub(super) shape: Shape,
    pub(super) id: Column,
    pub(super) order: Vec<Column>,
    /// Columns that are null in every row that waits, and stand before those of the order in an index of the table's own.
    leading: Vec<Column>,
    pub(super) kind: Column,
    pub(super) payload: Column,
    pub(super) entity: Option<Column>,
    pub(super) key: Option<Column>,
    pub(super) tenant: Option<Column>,
    pub(super) created: Option<Column>,
    pub(super) claimed: Option<Column>,
    pub(super) sent: Option<Column>,
    pub(super) attempts: Option<Column>,
    pub(super) last_error: Option<Column>,
    pub(super) id_header: Option<String>,
    /// Go into the headers.
    pub(super) others: Vec<Column>,
}

const TIMES: [&str; 2] = ["timestamp with time zone", "timestamp without time zone"];
const TEXTS: [&str; 2] = ["text", "character varying"];
const DOCUMENTS: [&str; 4] = ["json", "jsonb", "text", "character varying"];
const NUMBERS: [&str; 3] = ["integer", "bigint", "smallint"];

impl Mapping {
    /// Looks at the table.
    pub(super) async fn of(connection: &mut PgConnection, outbox: &Outbox) -> Result<Self> {
        // Names of types come out as they must be written in functions of ours, and the same for everybody who compares.
        let mut transaction = connection.begin().await?;
        sqlx::query("select set_config('search_path', 'pg_catalog, pg_temp', true)")
            .execute(&mut *transaction)
            .await?;
        let mut shape = Shape::of(&mut transaction, &Table::new(outbox.name.clone(), "outbox")).await?;
        transaction.rollback().await?;
        for column in &mut shape.columns {
            // Always quoted: PL/pgSQL reserves words that the server does not quote.
            column.ident = format!("\"{}\"", column.name.replace('"', "\"\""));
        }
        let preset = outbox.preset.map(super::Preset::columns).unwrap_or_default();
        let wanted = outbox.columns.or(preset);
        let find = Finder { outbox, shape: &shape, wanted: &wanted };
        let mapping = Self {
            id: find.needed("id", wanted.id.as_ref())?,
            order: find.order()?,
            leading: Vec::new(),
            kind: find.needed("type", wanted.r#type.as_ref())?,
            payload: find.typed("payload", find.needed("payload", wanted.payload.as_ref())?, &DOCUMENTS)?,
            entity: find.optional("entity", wanted.entity.as_ref())?,
            key: find.optional("key", wanted.key.as_ref())?,
            tenant: find.optional("tenant", wanted.tenant.as_ref())?,
            created: find.all_typed("created", wanted.created.as_ref(), &TIMES)?,
            claimed: find.all_typed("claimed", wanted.claimed.as_ref(), &TIMES)?,
            sent: find.all_typed("sent", wanted.sent.as_ref(), &TIMES)?,
            attempts: find.all_typed("attempts", wanted.attempts.as_ref(), &NUMBERS)?,
            last_error: find.all_typed("last_error", wanted.last_error.as_ref(), &TEXTS)?,
            id_header: wanted.id_header.clone(),
            others: Vec::new(),
            shape: shape.clone(),
        };
        if outbox.mode == Mode::Poll && mapping.has_lifecycle() && !mapping.is_marked() {
            return Err(Error::NoMark { table: outbox.name.clone(), shape: shape.name });
        }
        let known: Vec<String> = mapping.known().map(|column| column.name.clone()).collect();
        let others = shape.columns.iter().filter(|column| !known.contains(&column.name)).cloned().collect();
        let indexes: Vec<(Vec<Option<String>>, bool)> =
            sqlx::query_as(include_str!("sql/indexed.sql")).bind(shape.oid).fetch_all(connection).await?;
        let leading = mapping.leading(&indexes);
        Ok(Self { leading, others, ..mapping })
    }

    /// By an index that has the marks before the order, rows that wait are found without passing those that were sent: only if it is asked for
    /// by all of its columns. Where an index of the waiting rows has the order first, or none has it, there is nothing to be added.
    fn leading(&self, indexes: &[(Vec<Option<String>>, bool)]) -> Vec<Column> {
        let marks: Vec<&Column> = [&self.claimed, &self.sent].into_iter().flatten().collect();
        let is_ordered = |columns: &[Option<String>]| {
            columns.len() >= self.order.len()
                && self.order.iter().zip(columns).all(|(column, name)| Some(&column.name) == name.as_ref())
        };
        if indexes.iter().any(|(columns, is_partial)| *is_partial && is_ordered(columns)) {
            return Vec::new();
        }
        let leading = |columns: &[Option<String>]| -> Vec<Column> {
            columns
                .iter()
                .map_while(|name| marks.iter().find(|mark| Some(&mark.name) == name.as_ref()))
                .map(|mark| (*mark).clone())
                .collect()
        };
        indexes
            .iter()
            .map(|(columns, _)| (leading(columns), columns))
            .find(|(leading, columns)| !leading.is_empty() && is_ordered(&columns[leading.len()..]))
            .map(|(leading, _)| leading)
            .unwrap_or_default()
    }

    pub(super) fn known(&self) -> impl Iterator<Item = &Column> {
        let optional = [
            &self.entity,
            &self.key,
            &self.tenant,
            &self.created,
            &self.claimed,
            &self.sent,
            &self.attempts,
            &self.last_error,
        ];
        [&self.id, &self.kind, &self.payload]
            .into_iter()
            .chain(&self.order)
            .chain(optional.into_iter().flatten())
    }

    /// Whether anything of the table is written after a row was taken.
    pub(super) fn has_lifecycle(&self) -> bool {
        self.sent.is_some() || self.attempts.is_some() || self.last_error.is_some()
    }

    /// Whether a row itself tells that it was taken: otherwise nobody knows.
    pub(super) fn is_marked(&self) -> bool {
        self.sent.is_some() || self.claimed.is_some()
    }

    /// Of the moment that a row has, so that one which comes under the id of another is known from it; of no setting of the session.
    pub(super) fn born(&self, row: &str) -> Option<String> {
        let created = self.created.as_ref()?;
        let zone = if created.base_type == TIMES[0] { " at time zone 'UTC'" } else { "" };
        Some(format!("coalesce(timestamp_hash_extended({}{zone}, 0), 0)", self.value(created, row)))
    }

    /// A value of a row, as SQL. One that is computed whenever it is read is null in the row that a trigger has: there it is computed.
    pub(super) fn value(&self, column: &Column, row: &str) -> String {
        let Some(by) = column.r#virtual.as_deref().filter(|_| row == "new") else {
            return format!("{row}.{}", column.ident);
        };
        let columns: Vec<String> = self
            .shape
            .columns
            .iter()
            .filter(|column| column.r#virtual.is_none() && mentions(&[by], column))
            .map(|Column { ident, .. }| format!("{row}.{ident} as {ident}"))
            .collect();
        format!("(select ({by})::{} from (select {}) as computed)", column.type_name, columns.join(", "))
    }

    /// The condition that a note is of this row and not of an earlier one.
    pub(super) fn is_born(&self, note: &str, row: &str) -> String {
        self.born(row).map_or_else(String::new, |born| format!(" and coalesce({note}.born = {born}, true)"))
    }

    /// Whether an index of the table has the marks before the order.
    pub(super) fn is_led_by_marks(&self) -> bool {
        !self.leading.is_empty()
    }

    /// How the rows are sorted, oldest first.
    pub(super) fn sorted(&self, row: &str) -> String {
        self.order.iter().map(|column| format!("{row}.{}", column.ident)).collect::<Vec<_>>().join(", ")
    }

    /// The same among rows that wait, as an index of theirs has it.
    pub(super) fn sorted_waiting(&self, row: &str) -> String {
        let columns = self.leading.iter().chain(&self.order);
        columns.map(|column| format!("{row}.{}", column.ident)).collect::<Vec<_>>().join(", ")
    }
}

/// The moment as this column has it. A time without a zone is taken for UTC.
pub(super) fn moment(column: &Column, moment: &str) -> String {
    if column.base_type == TIMES[0] { moment.to_owned() } else { format!("({moment} at time zone 'UTC')") }
}

struct Finder<'a> {
    outbox: &'a Outbox,
    shape: &'a Shape,
    wanted: &'a Columns,
}

impl Finder<'_> {
    fn column(&self, field: &'static str, name: &str) -> Result<Column> {
        self.shape.columns.iter().find(|column| column.name == name).cloned().ok_or_else(|| Error::NoColumn {
            table: self.outbox.name.clone(),
            field,
            column: name.to_owned(),
            columns: self
                .shape
                .columns
                .iter()
                .map(|column| column.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    fn needed(&self, field: &'static str, name: Option<&String>) -> Result<Column> {
        let missing = || Error::NoField { table: self.outbox.name.clone(), field };
        self.column(field, name.ok_or_else(missing)?)
    }

    /// A column that a preset knows and the table may do without.
    fn optional(&self, field: &'static str, name: Option<&String>) -> Result<Option<Column>> {
        let Some(name) = name else { return Ok(None) };
        let demanded = self.declares(field) || self.outbox.preset.is_none_or(|preset| preset.demands(field));
        match self.column(field, name) {
            Err(_) if !demanded => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether the declaration itself names it.
    fn declares(&self, field: &str) -> bool {
        let columns = &self.outbox.columns;
        match field {
            "entity" => columns.entity.is_some(),
            "key" => columns.key.is_some(),
            "tenant" => columns.tenant.is_some(),
            "created" => columns.created.is_some(),
            "claimed" => columns.claimed.is_some(),
            "sent" => columns.sent.is_some(),
            "attempts" => columns.attempts.is_some(),
            "last_error" => columns.last_error.is_some(),
            _ => true,
        }
    }

    fn order(&self) -> Result<Vec<Column>> {
        match &self.wanted.order {
            Some(names) => names.iter().map(|name| self.column("order", name)).collect(),
            None => Ok(vec![self.needed("id", self.wanted.id.as_ref())?]),
        }
    }

    fn all_typed(
        &self,
        field: &'static str,
        name: Option<&String>,
        types: &'static [&'static str],
    ) -> Result<Option<Column>> {
        self.optional(field, name)?.map(|column| self.typed(field, column, types)).transpose()
    }

    fn typed(&self, field: &'static str, column: Column, types: &'static [&'static str]) -> Result<Column> {
        if types.contains(&column.base_type.as_str()) {
            return Ok(column);
        }
        let ident = &column.ident;
        let wanted = match types[0] {
            "timestamp with time zone" => "timestamptz",
            "json" => "jsonb",
            other => other,
        };
        Err(Error::WrongType {
            table: self.outbox.name.clone(),
            field,
            column: column.name.clone(),
            found: column.type_name.clone(),
            remedy: format!(
                "alter table {} alter column {ident} type {wanted} using {};",
                self.shape.name,
                match (column.base_type.as_str(), wanted) {
                    ("boolean", "timestamptz") => format!("case when {ident} then now() end"),
                    ("bytea", _) => format!("convert_from({ident}, 'UTF8')::{wanted}"),
                    _ => format!("{ident}::text::{wanted}"),
                }
            ),
        })
    }
}
