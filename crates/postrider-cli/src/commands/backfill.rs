//! `postrider backfill`: events for the rows that were there before.

use std::time::{Duration, Instant};

use clap::Args;
use postrider::capture::{self, Reached};
use postrider::schema;
use serde_json::json;
use sqlx::PgConnection;

use super::plan;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// How long to wait before asking again whether a sink has caught up.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a person is told what it waits for.
const REMIND: Duration = Duration::from_secs(10);

/// How often it is asked at least whether a sink is behind: counting may take longer than a page does.
const ASK: Duration = Duration::from_secs(1);

/// Sinks that owe more than so much; one that somebody paused does not count, or nothing would ever end.
const BEHIND: &str = "
    select b.sink, sum(b.events)::bigint
    from postrider.backlog b
    join postrider.delivery d on d.sink = b.sink and d.paused_at is null
    group by b.sink having sum(b.events) > $1
    order by 2 desc limit 1";

/// Make an event of every row that is there already
///
/// Goes along the primary key of a captured table and makes an event TYPE.snapshot of each row, of the row as it is when its turn comes:
/// a change that comes later is never overtaken by it. Rows that are deleted softly are left out. When it is interrupted, the same
/// command goes on where it was. It pauses while a sink owes more than --max-backlog events.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider backfill public.issues
  postrider backfill public.issues --where \"project_id = 7 and created_at > '2026-01-01'\"")]
pub(crate) struct Backfill {
    #[command(flatten)]
    target: Target,

    /// The table, as it is written in the file
    #[arg(value_name = "TABLE")]
    table: String,

    /// SQL over the row: only rows for which it is true
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,

    /// How many rows in one transaction, which locks them against changes
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    page: u32,

    /// Pause while a sink owes more events than this; 0: never
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    max_backlog: u32,
}

impl Backfill {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let declared = plan::written(&self.target)?;
        let Some(table) = declared.tables.iter().find(|table| table.name == self.table) else {
            return Err(Failure::configuration(format!(
                "the table {} is not declared in the file",
                output::plain(&self.table)
            )));
        };
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let (backfill, begun) = capture::Backfill::open(&mut connection, table, self.condition.as_deref())
            .await
            .map_err(|error| declared.failure(error))?;
        if begun.emitted > 0 {
            output::say(&format!("going on behind {}", output::events(begun.emitted)));
        }
        let mut progress = Progress::new(estimate(&mut connection, &self).await?);
        let (mut reached, mut asked) = (begun, None);
        while !reached.is_done {
            if self.is_time_to_ask(asked, reached.emitted) {
                self.wait_for_sinks(&mut connection, &mut progress, reached).await?;
                asked = Some((Instant::now(), reached.emitted));
            }
            reached = backfill.page(&mut connection, self.page).await?;
            progress.show(reached.emitted, reached.emitted);
        }
        progress.end();
        output::say(&format!(
            "{}: {} for the rows that were there",
            table.name,
            output::events(reached.emitted)
        ));
        if json {
            output::json(&json!({ "table": table.name, "emitted": reached.emitted }))?;
        }
        Ok(Exit::Fine)
    }

    /// Also by what was made since: a sink that stands still gets little more than it may owe.
    fn is_time_to_ask(&self, asked: Option<(Instant, u64)>, emitted: u64) -> bool {
        asked.is_none_or(|(at, before)| {
            at.elapsed() > ASK || emitted - before >= u64::from(self.max_backlog / 10)
        })
    }

    /// The log would take it all at once, but who waits for today's events should not wait behind those of all times.
    async fn wait_for_sinks(
        &self,
        connection: &mut PgConnection,
        progress: &mut Progress,
        reached: Reached,
    ) -> Result<(), Failure> {
        if self.max_backlog == 0 {
            return Ok(());
        }
        let mut limit = i64::from(self.max_backlog);
        let mut said: Option<Instant> = None;
        loop {
            let behind: Option<(String, i64)> = sqlx::query_as(BEHIND)
                .bind(limit)
                .fetch_optional(&mut *connection)
                .await
                .map_err(|error| Failure::from(postrider::log::Error::from(error)))?;
            let Some((sink, events)) = behind else { return Ok(()) };
            // Once it waits, it waits until there is room for more than one page.
            limit = i64::from(self.max_backlog) / 2;
            if said.is_none_or(|said| said.elapsed() > REMIND) {
                progress.end();
                output::say(&format!(
                    "{} made; waiting for the sink {}, which owes {}",
                    output::events(reached.emitted),
                    output::plain(&sink),
                    output::events(events.unsigned_abs())
                ));
                said = Some(Instant::now());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// About how many rows there are, if nothing says which.
async fn estimate(connection: &mut PgConnection, backfill: &Backfill) -> Result<Option<u64>, Failure> {
    if backfill.condition.is_some() {
        return Ok(None);
    }
    let rows: Option<f64> = sqlx::query_scalar(
        "select sum(nullif(c.reltuples, -1))::float8 from pg_class c
         where c.oid in (select to_regclass($1) union select t.relid from pg_partition_tree(to_regclass($1)) t where t.isleaf)",
    )
    .bind(&backfill.table)
    .fetch_one(connection)
    .await
    .map_err(|error| Failure::from(postrider::log::Error::from(error)))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    Ok(rows.filter(|rows| *rows >= 1.0).map(|rows| rows as u64))
}
