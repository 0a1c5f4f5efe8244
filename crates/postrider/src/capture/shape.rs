//! What the server knows of a table. Every name comes quoted by the server.

use sqlx::{PgConnection, Row};

use super::declaration::Table;
use super::failure::{Error, Result};

/// A table as the server knows it.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Of the table.
    pub oid: i64,
    /// With its schema, quoted.
    pub name: String,
    /// Without its schema, quoted: what expressions may put before a column.
    pub alias: String,
    /// Whether it has partitions.
    pub partitioned: bool,
    /// Whether a crash empties it.
    pub unlogged: bool,
    /// What follows the purpose in the name of its recording function, as `postrider.recorder` has it.
    pub recorder: String,
    /// The number behind the last column that ever was: if it exists, the table has changed.
    pub next_attribute: i16,
    /// In their order.
    pub columns: Vec<Column>,
    /// The table it hangs on.
    pub parent: Option<ParentShape>,
}

/// The table another one hangs on, as the server knows it.
#[derive(Debug, Clone)]
pub struct ParentShape {
    /// Of the table.
    pub oid: i64,
    /// With its schema, quoted.
    pub name: String,
    /// Whether it has partitions.
    pub partitioned: bool,
    /// The column that identifies it, as it is.
    pub column: String,
    /// The same, quoted.
    pub ident: String,
    /// All of them, in their order.
    pub columns: Vec<Column>,
}

/// A column as the server knows it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub struct Column {
    /// Which it keeps under whatever name.
    pub number: i16,
    /// As it is.
    pub name: String,
    /// Quoted, whether SQL wants it or not: PL/pgSQL has reserved words of its own.
    pub ident: String,
    /// Quoted only where SQL wants it.
    pub bare: String,
    /// Quoted as a string.
    pub literal: String,
    /// Its type, with its schema.
    pub type_name: String,
    /// Its type with its schema, without a length or a precision: what holds every value, also of a column that was widened.
    pub any_type: String,
    /// The same where it is one of the server's own, which nobody renames or drops.
    pub lasting_type: Option<String>,
    /// Without domains around it.
    pub base_type: String,
    /// Of the base type: 'b' base, 'c' composite, 'e' enum, 'r' range …
    pub type_kind: i8,
    /// Whether equal means identical: not so for numeric (1.0 = 1.00), citext, jsonb and whatever contains them.
    pub equality_is_identity: bool,
    /// Whether it is part of the primary key.
    pub in_key: bool,
    /// The order it has there, or by itself.
    pub order: Order,
    /// A function that has one value for all that are equal, with its schema.
    pub hash: Option<String>,
    /// Its collation, with its schema, where that takes different texts for equal.
    pub loose_collation: Option<String>,
    /// Whether its type, or one inside it, brings its own JSON along, which it need not take back; nor does an array of documents.
    pub has_own_json: bool,
    /// Whether it has always a value.
    pub never_null: bool,
    /// Whether it is computed from others.
    pub generated: bool,
    /// What it is computed by whenever it is read: triggers find null in it.
    pub r#virtual: Option<String>,
}

/// The operators of an order, each with its schema.
#[derive(Debug, Clone)]
pub struct Order {
    /// Before.
    pub less: String,
    /// The same.
    pub equal: String,
    /// Not before.
    pub not_less: String,
    /// Behind.
    pub greater: String,
}

impl ParentShape {
    /// The column that identifies it.
    pub(super) fn key(&self) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == self.column)
    }

    /// The operator by which a key is that of a row.
    pub(super) fn equal(&self) -> &str {
        self.key().map_or("operator(pg_catalog.=)", |key| &key.order.equal)
    }

    /// Whether the server makes sure that one row at most has a value in this column.
    pub(super) async fn is_unique(&self, connection: &mut PgConnection, column: &str) -> sqlx::Result<bool> {
        sqlx::query_scalar(
            "select exists (
                 select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                 where i.indrelid = $1::bigint::oid and a.attname = $2 and i.indnkeyatts = 1
                   and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null)",
        )
        .bind(self.oid)
        .bind(column)
        .fetch_one(connection)
        .await
    }

    /// Refuses a column of which several rows may have a value: which of them an event is made of would be left to chance. Where there are
    /// partitions the server may be unable to make sure of it, and a note says so.
    pub(super) async fn check(&self, connection: &mut PgConnection, table: &Table) -> Result<()> {
        if self.partitioned || self.is_unique(connection, &self.column).await? {
            return Ok(());
        }
        Err(Error::Expression {
            table: table.name.clone(),
            key: "parent.column".to_owned(),
            expression: self.column.clone(),
            reason: format!("two rows of {} could have the same value", self.name),
            hint: ": give that column a unique index, neither partial nor deferrable, or name one that has",
        })
    }
}

impl Shape {
    /// Asks the server for a declared table.
    pub async fn of(connection: &mut PgConnection, table: &Table) -> Result<Self> {
        let mut shape = Self::alone(connection, table).await?;
        if let Some(parent) = &table.parent {
            let found = Self::alone(connection, &Table::new(parent.table.clone(), "parent")).await?;
            let column = found.column(table, "parent.column", &parent.column)?;
            let (column, ident) = (column.name.clone(), column.ident.clone());
            let Self { oid, name, partitioned, columns, .. } = found;
            shape.parent = Some(ParentShape { oid, name, partitioned, column, ident, columns });
        }
        Ok(shape)
    }

    async fn alone(connection: &mut PgConnection, table: &Table) -> Result<Self> {
        let row = sqlx::query(include_str!("sql/table.sql"))
            .bind(&table.name)
            .fetch_optional(&mut *connection)
            .await?
            .ok_or_else(|| Error::NoTable { table: table.name.clone() })?;
        let kind: i8 = row.try_get("relkind")?;
        check_kind(table, u8::try_from(kind).unwrap_or_default())?;
        let children: String = row.try_get("children")?;
        let partitioned = kind == i8::try_from(b'p').unwrap_or_default();
        if !partitioned && !children.is_empty() {
            return Err(Error::Inherited { table: table.name.clone(), children });
        }
        let oid: i64 = row.try_get("oid")?;
        let columns = sqlx::query(include_str!("sql/columns.sql"))
            .bind(oid)
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| {
                Ok(Column {
                    number: row.try_get("number")?,
                    name: row.try_get("name")?,
                    ident: row.try_get("ident")?,
                    bare: row.try_get("bare")?,
                    literal: row.try_get("literal")?,
                    type_name: row.try_get("type_name")?,
                    any_type: row.try_get("any_type")?,
                    lasting_type: row.try_get("lasting_type")?,
                    base_type: row.try_get("base_type")?,
                    type_kind: row.try_get("type_kind")?,
                    equality_is_identity: row.try_get("equality_is_identity")?,
                    in_key: row.try_get("in_key")?,
                    order: Order {
                        less: row.try_get("less")?,
                        equal: row.try_get("equal")?,
                        not_less: row.try_get("not_less")?,
                        greater: row.try_get("greater")?,
                    },
                    hash: row.try_get("hash")?,
                    loose_collation: row.try_get("loose_collation")?,
                    has_own_json: row.try_get("has_own_json")?,
                    never_null: row.try_get("never_null")?,
                    generated: row.try_get("generated")?,
                    r#virtual: row.try_get("virtual")?,
                })
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()?;
        Ok(Self {
            oid,
            name: row.try_get("name")?,
            alias: row.try_get("alias")?,
            partitioned,
            unlogged: row.try_get("unlogged")?,
            recorder: row.try_get("recorder")?,
            next_attribute: row.try_get::<i16, _>("relnatts")? + 1,
            columns,
            parent: None,
        })
    }

    /// The column of that name.
    pub fn column(&self, table: &Table, key: &'static str, name: &str) -> Result<&Column> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| Error::NoColumn {
            table: table.name.clone(),
            key,
            column: name.to_owned(),
            columns: self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

fn check_kind(table: &Table, kind: u8) -> Result<()> {
    let (kind, remedy) = match kind {
        b'r' | b'p' => return Ok(()),
        b'v' => ("a view", "; declare the tables it is made of"),
        b'm' => ("a materialized view", "; declare the tables it is made of"),
        b'f' => ("a foreign table", "; capture it in the database where it lives"),
        _ => ("no table", ""),
    };
    Err(Error::NotATable { table: table.name.clone(), kind: kind.to_owned(), remedy })
}
