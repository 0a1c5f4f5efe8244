//! Rows that wait and cannot become events: too long a type, no payload. They stay where they are and hold nobody up; here they are
//! brought to light, for whoever is to mend them.

use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use time::OffsetDateTime;

use super::declaration::{Mode, Outbox};
use super::failure::Result;
use super::functions::{Answer, answered, called};
use super::mapping::Mapping;
use super::{functions, generate, transfer};
use crate::capture::{Column, literal};

/// So many are counted and told of.
const MOST: u32 = 1000;

/// What an outbox table has of them.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Misfits {
    /// The table, quoted, with its schema.
    pub outbox: String,
    /// How many rows; counted to 1,000.
    pub rows: i64,
    /// The id of the first.
    pub source_id: String,
    /// Why that one cannot be an event.
    pub reason: String,
    /// Since when there are any.
    pub since: OffsetDateTime,
}

/// Of every table, as the relays that keep them have found it.
pub async fn misfits(connection: &mut PgConnection) -> Result<Vec<Misfits>> {
    Ok(sqlx::query_as(
        "select outbox, rows, source_id, reason, since from postrider.all_misfits order by outbox",
    )
    .fetch_all(connection)
    .await?)
}

/// Looks for those of one table.
#[derive(Debug, Clone)]
pub(super) struct Looker {
    table: String,
    look: String,
}

impl Looker {
    pub(super) async fn of(connection: &mut PgConnection, mapping: &Mapping) -> Result<Self> {
        let look = format!("select {}", called(&functions::looker(connection, mapping).await?));
        Ok(Self { table: mapping.shape.name.clone(), look })
    }

    /// What there is now.
    pub(super) async fn look(&self, connection: &mut PgConnection) -> Result<Option<Misfits>> {
        let answer: Answer =
            sqlx::query_as(AssertSqlSafe(self.look.clone())).fetch_one(&mut *connection).await?;
        if answered(&self.table, answer)? == 0 {
            return Ok(None);
        }
        Ok(misfits(connection).await?.into_iter().find(|misfits| misfits.outbox == self.table))
    }
}

/// Why a row cannot be an event, in words, as SQL.
fn reason(mapping: &Mapping) -> String {
    let too_long = |column: &Option<Column>, most: u32| {
        column.as_ref().map(|column| {
            format!(
                "when octet_length(o.{}::text) > {most} then {}",
                column.ident,
                literal(&format!("{} is longer than {most} bytes", column.name))
            )
        })
    };
    let missing = |column: &Column| {
        format!("when o.{} is null then {}", column.ident, literal(&format!("{} is null", column.name)))
    };
    let empty = format!(
        "when o.{}::text = '' then {}",
        mapping.kind.ident,
        literal(&format!("{} is empty", mapping.kind.name))
    );
    let mut cases = vec![missing(&mapping.id), missing(&mapping.kind), empty, missing(&mapping.payload)];
    cases.extend(too_long(&Some(mapping.kind.clone()), 255));
    cases.extend(too_long(&mapping.key, 1024));
    cases.extend(too_long(&mapping.tenant, 255));
    cases.extend(too_long(&mapping.entity, 255));
    format!(
        "case {} else 'it came while no trigger was on the table: `postrider apply` takes it' end",
        cases.join(" ")
    )
}

/// Where the table has a place for it, a row tells itself why it is not taken. Rows that somebody works on are told another time.
fn told(mapping: &Mapping) -> String {
    let Some(last_error) = &mapping.last_error else { return String::new() };
    let (name, id) = (&mapping.shape.name, &mapping.id.ident);
    let counted = mapping
        .attempts
        .as_ref()
        .map_or_else(String::new, |attempts| format!(", {0} = coalesce(o.{0}, 0) + 1", attempts.ident));
    format!(
        ",
    free as materialized (
        select o.{id} as id, m.reason::{kind} as reason from {name} o join misfits m on m.id = o.{id}
        where o.{last_error} is distinct from m.reason::{kind}
        for no key update of o skip locked),
    told as (
        update {name} o set {last_error} = f.reason{counted} from free f where o.{id} = f.id)",
        kind = last_error.type_name,
        last_error = last_error.ident,
    )
}

/// The body of the function: how many there are. As for marks, nobody is waited for while rows are held here. By trigger no other row may wait and not be in the log, so any that does is one.
pub(super) fn body(outbox: &Outbox, mapping: &Mapping, found_by: &str) -> String {
    let unfit = format!("not ({})", generate::fit(mapping, "o"));
    let which = match outbox.mode {
        Mode::Poll => format!("{} and {unfit}", transfer::untaken(mapping)),
        Mode::Trigger if mapping.is_marked() => transfer::waiting(mapping, "o"),
        Mode::Trigger => unfit,
    };
    format!(
        "
#variable_conflict use_column
declare
    found_rows bigint;
begin
    set local lock_timeout = '20ms';
    with misfits as materialized (
        select o.{id} as id, coalesce(o.{id}::text, 'no id') as source_id, {reason} as reason
        from {name} o
        where {which}
        order by {sorted}
        limit {MOST}){told},
    noted as (
        insert into postrider.misfits as n (outbox, rows, source_id, reason, found_by)
        select {table}, count(*), (array_agg(m.source_id))[1], (array_agg(m.reason))[1], {found_by} from misfits m having count(*) > 0
        on conflict (outbox) do update
        set rows = excluded.rows, source_id = excluded.source_id, reason = excluded.reason, found_by = excluded.found_by)
    select count(*) into found_rows from misfits;
    if found_rows = 0 then
        delete from postrider.misfits n where n.outbox = {table};
    end if;
    set constraints all immediate;
    return found_rows;
end
",
        id = mapping.id.ident,
        reason = reason(mapping),
        name = mapping.shape.name,
        sorted = mapping.sorted("o"),
        told = told(mapping),
        table = literal(&mapping.shape.name),
        found_by = literal(found_by),
    )
}
