//! What can be wrong with a declaration.

/// The result of planning.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with a declaration, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such table.
    #[error("there is no table {table}: name it with its schema, for example public.issues")]
    NoTable {
        /// As declared.
        table: String,
    },
    /// Whoever installs has not the rights for it.
    #[error("{user:?} {missing}: let the owner of the schema postrider, or a superuser, run `{statement}`")]
    Rights {
        /// Who.
        user: String,
        /// What.
        missing: String,
        /// What gives it.
        statement: String,
    },
    /// Another role's table, whose function could not be given to that role.
    #[error(
        "{table} belongs to {owner:?}, whose rights its trigger has: run this as {owner:?}, as one of its members or as a superuser, and not as {user:?}"
    )]
    NotTheOwner {
        /// As declared.
        table: String,
        /// Whose it is.
        owner: String,
        /// Who asks.
        user: String,
    },
    /// Row security hides rows of the parent from the trigger.
    #[error(
        "{parent} has row security that binds its owner too, and the trigger of {table} has to find every row of it: give the owner of {table} BYPASSRLS, or take FORCE ROW LEVEL SECURITY off {parent}"
    )]
    Hidden {
        /// As declared.
        table: String,
        /// Of the table.
        parent: String,
    },
    /// The trigger could not read the parent.
    #[error(
        "{owner:?}, with whose rights the trigger of {table} looks for rows of {parent}, may not read that: let its owner, or a superuser, run `{statement}`"
    )]
    Unreadable {
        /// As declared.
        table: String,
        /// Of the table.
        parent: String,
        /// Of the table, too.
        owner: String,
        /// What lets him.
        statement: String,
    },
    /// It is something else.
    #[error("{table} is {kind}: only tables can be captured{remedy}")]
    NotATable {
        /// As declared.
        table: String,
        /// What it is.
        kind: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// It has children by inheritance, whose rows a trigger on it never sees.
    #[error(
        "{table} has inheriting tables ({children}), whose rows its trigger never sees: declare each of them, and not {table}"
    )]
    Inherited {
        /// As declared.
        table: String,
        /// Which.
        children: String,
    },
    /// A declaration names a column that is not there.
    #[error("tables.{table}.{key}: there is no column {column}; there are {columns}")]
    NoColumn {
        /// As declared.
        table: String,
        /// Of the declaration.
        key: &'static str,
        /// Which.
        column: String,
        /// Those that exist.
        columns: String,
    },
    /// JSON would have a field twice.
    #[error(
        "tables.{table}.extra.{name}: the row has a column of that name; call the field otherwise, or leave the column out with `omit`"
    )]
    ExtraColumn {
        /// As declared.
        table: String,
        /// Of the field and the column.
        name: String,
    },
    /// No row of it would ever count.
    #[error(
        "tables.{table}.soft_delete: {column} is never null, and a row counts as deleted when it has a value there: name a column that is null until then, or none"
    )]
    NeverNull {
        /// As declared.
        table: String,
        /// Which.
        column: String,
    },
    /// Neither a primary key nor an expression.
    #[error(
        "{table} has no primary key: say with tables.{table}.key by what its events are to be kept in order"
    )]
    NoKey {
        /// As declared.
        table: String,
    },
    /// Without triggers nothing keeps a snapshot from overtaking a change.
    #[error(
        "{table} is not captured as declared: run `postrider apply` first, so that changes during the backfill are recorded"
    )]
    NotCaptured {
        /// As declared.
        table: String,
    },
    /// A snapshot would come before what happened before it.
    #[error(
        "events of {table} are kept that could not be recorded, and snapshots would overtake them: run `postrider recapture` first"
    )]
    Kept {
        /// Quoted, with its schema.
        table: String,
    },
    /// Nothing to walk along.
    #[error("{table} has no primary key: a backfill goes along it")]
    NoPrimaryKey {
        /// As declared.
        table: String,
    },
    /// A declaration without a type for snapshots.
    #[error("tables.{table}.verbs.snapshot is `none`: a backfill of it would make no event")]
    NoSnapshot {
        /// As declared.
        table: String,
    },
    /// A condition that the server does not take.
    #[error("the condition `{condition}` is not taken: {reason}")]
    Condition {
        /// As given.
        condition: String,
        /// What the server says.
        reason: String,
    },
    /// An expression that the server does not take.
    #[error("tables.{table}.{key}: {reason} in `{expression}`{hint}")]
    Expression {
        /// As declared.
        table: String,
        /// Of the declaration.
        key: String,
        /// As declared.
        expression: String,
        /// The server's words.
        reason: String,
        /// What often helps.
        hint: &'static str,
    },
    /// Two declarations of one table.
    #[error("{first} and {second} are the same table: declare it once, or every row would be captured twice")]
    Twice {
        /// As declared.
        first: String,
        /// As declared.
        second: String,
    },
    /// A table and its partition, each with a trigger.
    #[error(
        "{partition} is a partition of {table}: with a capture trigger on both, every row would be captured twice; declare {table} alone, \
         and take an old trigger of {partition} away with `postrider apply --remove-orphans`"
    )]
    Overlap {
        /// Of the two, the one with partitions.
        table: String,
        /// Of the two, the partition.
        partition: String,
    },
    /// The database did not do what it was asked.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}
