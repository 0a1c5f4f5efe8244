//! The triggers of parents, which remember rows that go for those of their children.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, PgConnection};

use super::declaration::{OnFailure, Replicated, Table};
use super::departed;
use super::difference::{Difference, State};
use super::failure::Result;
use super::found::{DEPARTED, Found};
use super::generate::literal;
use super::making::{dollar_quoted, enable, enable_clones, function_name, hand_over};
use super::shape::{ParentShape, Shape};

/// The tables that captured ones hang on.
#[derive(Default)]
pub(super) struct Parents(BTreeMap<i64, Remembered>);

/// A table that captured ones hang on.
struct Remembered {
    parent: ParentShape,
    /// By which it is known.
    columns: BTreeSet<String>,
    /// Whether all that hang on it are to survive whatever happens to their events: then so are its deletions.
    survives: bool,
}

impl Parents {
    /// That of a captured table.
    pub(super) fn add(&mut self, table: &Table, shape: &Shape) {
        if let Some(parent) = &shape.parent {
            let new = || Remembered { parent: parent.clone(), columns: BTreeSet::new(), survives: true };
            let remembered = self.0.entry(parent.oid).or_insert_with(new);
            remembered.columns.insert(parent.column.clone());
            remembered.survives &= table.on_failure == OnFailure::Record;
        }
    }

    /// How the trigger of each stands.
    pub(super) async fn all(
        &self,
        connection: &mut PgConnection,
        found: &[Found],
    ) -> Result<Vec<(i64, Difference)>> {
        let mut all = Vec::new();
        for remembered in self.0.values() {
            all.push((remembered.parent.oid, departing(connection, remembered, found).await?));
        }
        Ok(all)
    }

    /// How the trigger of this one's stands.
    pub(super) async fn departing(
        &self,
        connection: &mut PgConnection,
        shape: &Shape,
        found: &[Found],
    ) -> Result<Option<Difference>> {
        let Some(remembered) = shape.parent.as_ref().and_then(|parent| self.0.get(&parent.oid)) else {
            return Ok(None);
        };
        Ok(Some(departing(connection, remembered, found).await?))
    }
}

/// Whether whoever asks could give a function to the owner of the table `c`, who must be let to have one.
const MAY_GIVE: &str = "pg_catalog.pg_has_role(c.relowner, 'member')
    and (pg_catalog.current_setting('is_superuser') operator(pg_catalog.=) 'on'::pg_catalog.text or pg_catalog.has_schema_privilege(c.relowner, 'postrider_capture', 'create'))";

/// It belongs to the parent's owner, as that of a captured table does, unless whoever installs has no right to give it to him.
fn create_remember(function: &str, parent: &str, body: &str) -> [String; 3] {
    let settings = "set timezone = 'UTC' set intervalstyle = 'iso_8601' set extra_float_digits = 1 set bytea_output = 'hex' set datestyle = 'ISO, MDY'";
    [
        format!(
            "create or replace function {function}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {settings}\nas {}",
            dollar_quoted(body)
        ),
        format!("revoke all on function {function}() from public"),
        format!(
            "{} from pg_catalog.pg_class c where c.oid operator(pg_catalog.=) {}::pg_catalog.regclass and {MAY_GIVE}",
            hand_over(function, parent),
            literal(parent)
        ),
    ]
}

/// The trigger of a parent.
async fn departing(
    connection: &mut PgConnection,
    remembered: &Remembered,
    found: &[Found],
) -> Result<Difference> {
    let Remembered { parent, columns, survives } = remembered;
    let name = &parent.name;
    let function = function_name(connection, parent.oid, "departed").await?;
    let body = departed::remember(parent, columns, *survives);
    let ours = found.iter().find(|found| found.relation == parent.oid && found.name == DEPARTED);
    let state = match ours {
        None => State::Missing,
        Some(ours) if ours.body != body || !ours.may_record => State::Outdated,
        Some(ours) if !ours.is_safe && may_give(connection, parent.oid).await? => State::Outdated,
        Some(ours) if !ours.is_whole || !ours.fires(Replicated::Capture) => State::Disabled,
        Some(_) => State::Installed,
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.extend(create_remember(&function, name, &body));
        statements.push(format!("drop trigger if exists \"{DEPARTED}\" on {name}"));
        // Before it goes: one statement may take rows of the child and of the parent away, and the child's trigger may come first then.
        statements.push(format!(
            "create trigger \"{DEPARTED}\" before delete on {name} for each row execute function {function}()"
        ));
        statements.extend(enable(name, &[DEPARTED], Replicated::Capture));
        if parent.partitioned {
            statements.push(enable_clones(name, DEPARTED, Replicated::Capture));
        }
    }
    let reverse = match ours {
        Some(_) => Vec::new(),
        None => vec![
            format!("drop trigger if exists \"{DEPARTED}\" on {name}"),
            format!("drop function if exists {function}()"),
        ],
    };
    let mut notes = vec!["as a parent: what hangs on it is captured".to_owned()];
    for column in columns {
        if !parent.is_unique(connection, column).await? {
            notes.push(format!(
                "no unique index is on {column} alone: where rows have the same value, events are made of any of them"
            ));
        }
    }
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

async fn may_give(connection: &mut PgConnection, table: i64) -> Result<bool> {
    let asked = format!("select {MAY_GIVE} from pg_class c where c.oid = $1::bigint::oid");
    Ok(sqlx::query_scalar(AssertSqlSafe(asked)).bind(table).fetch_one(connection).await?)
}
