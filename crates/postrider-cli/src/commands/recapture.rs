//! `postrider recapture`: records the events that could not be recorded when they happened.

use anyhow::Context as _;
use clap::Args;
use postrider::capture::{self, Kept, Missing, Recaptured, Which};
use postrider::schema;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::plan;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// Record the events that could not be recorded when they happened
///
/// With `on_failure: record`, or where columns have changed under a trigger, a write survives although its event could not be recorded, and
/// everything that recording it takes is kept. Later events of the same key wait behind it. This makes the events of it, as the tables are
/// declared now, in the order of the writes. One that still cannot be recorded stays, and so does what waits behind it. Exits with 2 if
/// something is left. A table that cannot be captured as declared is left out, and named when the others are done.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider recapture                              of every declared table
  postrider recapture public.issues                of one
  postrider recapture --discard 17 --yes           let go of a single write, by its number
  postrider recapture --discard public.old --yes   of all that is kept of a table, also of one that is gone")]
pub(crate) struct Recapture {
    #[command(flatten)]
    target: Target,

    /// Only of these tables, as they are written in the file
    #[arg(value_name = "TABLE", conflicts_with = "discard")]
    tables: Vec<String>,

    /// Let go of what can never be recorded, a write by its number or all writes of a table: their events are lost
    #[arg(long, value_name = "ID|TABLE")]
    discard: Option<String>,

    /// With --discard: do it, and do not only show it
    #[arg(long, requires = "discard")]
    yes: bool,
}

impl Recapture {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        if let Some(which) = &self.discard {
            return self.discard(which, json).await;
        }
        let declared = plan::written(&self.target)?;
        if let Some(unknown) =
            self.tables.iter().find(|name| !declared.tables.iter().any(|table| table.name == **name))
        {
            return Err(Failure::configuration(format!("the table {unknown} is not declared in the file")));
        }
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let mut recaptured: Vec<Value> = Vec::new();
        // A table that cannot be asked for holds up no other.
        let mut failed: Option<Failure> = None;
        for table in
            declared.tables.iter().filter(|table| self.tables.is_empty() || self.tables.contains(&table.name))
        {
            let Recaptured { writes, refused } = match capture::recapture(&mut connection, table).await {
                Ok(done) => done,
                Err(capture::Error::Database(error)) => {
                    let failed = Err::<(), _>(error).with_context(|| {
                        format!(
                            "the events of {} still cannot be recorded; nothing of it is lost",
                            table.name
                        )
                    });
                    return failed.map(|()| Exit::Fine).map_err(|error| Failure::new(Exit::Failed, error));
                }
                Err(error) => {
                    if let Some(earlier) = failed.replace(declared.failure(error)) {
                        output::say(&earlier.to_string());
                    }
                    continue;
                }
            };
            if writes > 0 {
                output::say(&format!("{}: the events of {} are recorded", table.name, writes_of(writes)));
            }
            if let Some(kept) = &refused {
                output::say(&format!("  {}", in_words(kept)));
            }
            recaptured.push(
                json!({ "table": table.name, "writes": writes, "refused": refused.as_ref().map(document) }),
            );
        }
        let left = capture::missing(&mut connection).await?;
        for Missing { relation, failures, sqlstate, .. } in &left {
            let writes = writes_of(failures.unsigned_abs());
            output::say(&format!(
                "{}: the events of {writes} are still missing (error {sqlstate})",
                output::plain(relation)
            ));
            if let Some(advice) = advice(&mut connection, relation).await? {
                output::say(&format!("  {advice}"));
            }
        }
        if left.is_empty() {
            output::say("no event is missing");
        }
        if json {
            let left: Vec<Value> = left
                .iter()
                .map(|left| json!({ "relation": left.relation, "writes": left.failures, "sqlstate": left.sqlstate }))
                .collect();
            output::json(&json!({ "recaptured": recaptured, "left": left }))?;
        }
        match failed {
            Some(failed) => Err(failed),
            None if left.is_empty() => Ok(Exit::Fine),
            None => Ok(Exit::Found),
        }
    }

    /// Shows what would go, and with `--yes` lets it go.
    async fn discard(&self, which: &str, json: bool) -> Result<Exit, Failure> {
        let which = which.parse().map_or_else(|_| Which::Relation(which.to_owned()), Which::Failure);
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let (count, first) = capture::kept(&mut connection, &which).await?;
        for kept in &first {
            output::say(&format!("{}: {}", output::plain(&kept.relation), in_words(kept)));
        }
        let discarded = if self.yes { capture::discard(&mut connection, &which).await? } else { 0 };
        output::say(&match (count, self.yes) {
            (0, _) => "nothing of it is kept".to_owned(),
            (_, false) => format!("{}; with --yes their events are given up for ever", writes_of(count)),
            (_, true) => format!("the events of {} are given up", writes_of(discarded)),
        });
        if json {
            let first: Vec<Value> = first.iter().map(document).collect();
            output::json(&json!({ "kept": count, "discarded": discarded, "first": first }))?;
        }
        Ok(if count > 0 && !self.yes { Exit::Found } else { Exit::Fine })
    }
}

/// What helps where no declared table is the one that something is kept of.
async fn advice(connection: &mut PgConnection, relation: &str) -> Result<Option<String>, Failure> {
    let (exists, is_captured): (bool, bool) = sqlx::query_as(
        "select t.relid is not null,
                exists (select from postrider.recorders r where r.purpose = 'record' and to_regclass(r.relation)
                        in (select t.relid union all select a.relid from pg_partition_ancestors(t.relid) a))
         from to_regclass($1) t (relid)",
    )
    .bind(relation)
    .fetch_one(connection)
    .await
    .map_err(|error| Failure::from(postrider::log::Error::from(error)))?;
    let relation = output::plain(relation);
    Ok(match (exists, is_captured) {
        (_, true) => None,
        (true, false) => Some(format!(
            "{relation} is captured no more: if it was a partition, attach it again, recapture and detach it, or say \
             \"update postrider.capture_failures set relation = 'ITS TABLE', relid = null where relation = '{relation}'\"; \
             if nobody is to hear of it, `postrider recapture --discard {relation}`"
        )),
        (false, false) => Some(format!(
            "there is no such table: if it was renamed, declare it by its new name, and in a database that was restored since also say \
             \"update postrider.capture_failures set relation = 'NEW' where relation = '{relation}'\", with the name of its table if it was \
             a partition; if nobody is to hear of it, `postrider recapture --discard {relation}`"
        )),
    })
}

/// A write that is kept, for a person.
pub(super) fn in_words(kept: &Kept) -> String {
    let Kept { failure, operation, key, sqlstate, message, failed_at, .. } = kept;
    let key = key.as_ref().map_or_else(String::new, |key| format!(" of the key {key}"));
    output::plain(&format!(
        "the {operation}{key} at {} cannot be recorded: {message} (error {sqlstate}); mend that, or `postrider recapture --discard {failure}`",
        moment::short(*failed_at)
    ))
}

fn document(kept: &Kept) -> Value {
    json!({
        "failure": kept.failure,
        "relation": kept.relation,
        "operation": kept.operation,
        "key": kept.key,
        "sqlstate": kept.sqlstate,
        "message": kept.message,
        "failed_at": moment::text(kept.failed_at),
    })
}

fn writes_of(count: u64) -> String {
    if count == 1 { "1 write".to_owned() } else { format!("{} writes", output::thousands(i128::from(count))) }
}
