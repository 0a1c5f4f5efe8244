//! Reading the log with cursors that live in memory alone.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use postrider::log::cursor::Cursor;
use postrider::log::{self, Record, flush, round};
use sqlx::{Connection as _, PgConnection, Row as _};
use time::OffsetDateTime;

use super::filter::Filter;
use crate::failure::Failure;
use crate::steady::Steady;

const PAGE: i64 = 500;
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(250);

/// Only inside the transaction: a session that a pooler hands on must stay as it was. These are what a round's plan depends on.
const BEGIN: &str = "begin isolation level repeatable read read only;
    set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off;
    set local max_parallel_workers_per_gather = 0; set local plan_cache_mode = force_generic_plan";

/// The same for looking back: the index that finds a time is only used by bitmaps.
const BEGIN_BACK: &str = "begin read only; set local jit = off";

/// What is shown first.
pub(super) enum Past {
    Nothing,
    Since(OffsetDateTime),
    Last(i64),
}

/// A place in the log.
pub(super) struct Follow {
    cursors: BTreeMap<i16, Cursor>,
    lanes: usize,
    pause: Duration,
    /// Where it began.
    position: i64,
    snapshot: Arc<str>,
}

impl Follow {
    /// Begins with what commits from now on.
    pub(super) async fn begin(connection: &mut PgConnection) -> log::error::Result<Self> {
        let row = sqlx::query(
            "select coalesce(pg_sequence_last_value('postrider.seq'), 0), pg_current_snapshot()::text, postrider.lanes()::smallint",
        )
        .fetch_one(connection)
        .await?;
        let position: i64 = row.try_get(0)?;
        let snapshot: Arc<str> = Arc::from(row.try_get::<String, _>(1)?);
        let lanes: i16 = row.try_get(2)?;
        let cursors = (0..lanes).map(|lane| (lane, Cursor::new(position, Arc::clone(&snapshot)))).collect();
        let lanes = usize::try_from(lanes).unwrap_or_default();
        Ok(Self { cursors, lanes, pause: SHORTEST, position, snapshot })
    }

    /// Shows what is asked for of the time before it began. Answers whether more is wanted.
    ///
    /// What it began with decides which events those are, not when they are read: what is not among them comes with [`Self::next`], and a
    /// connection that was lost in the middle is taken up behind what was shown.
    pub(super) async fn look_back(
        &self,
        steady: &mut Steady,
        filter: &Filter,
        past: &Past,
        mut show: impl FnMut(&Record) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let mut shown = 0;
        loop {
            let mut stop = None;
            let read = self
                .read_back(steady.connection(), filter, past, shown, |record| match show(record) {
                    Ok(true) => {
                        shown = record.seq;
                        true
                    }
                    end => {
                        stop = Some(end);
                        false
                    }
                })
                .await;
            match (read, stop) {
                (_, Some(end)) => return end,
                (Ok(()), None) => return Ok(true),
                (Err(error), None) => steady.mend(error).await?,
            }
        }
    }

    /// Behind `shown`, as long as `show` wants more.
    async fn read_back(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        past: &Past,
        shown: i64,
        mut show: impl FnMut(&Record) -> bool,
    ) -> log::error::Result<()> {
        let statement = match past {
            Past::Nothing => return Ok(()),
            Past::Since(since) => sqlx::query_as::<_, Record>(include_str!("since.sql")).bind(*since),
            Past::Last(lines) => sqlx::query_as(include_str!("last.sql")).bind(*lines),
        };
        let mut transaction = connection.begin_with(BEGIN_BACK).await?;
        {
            let mut rows = statement
                .bind(filter.type_like())
                .bind(filter.key.as_deref())
                .bind(filter.tenant.as_deref())
                .bind(filter.entity.as_deref())
                .bind(self.position)
                .bind(&*self.snapshot)
                .bind(shown)
                .fetch(&mut *transaction);
            // As they come: of a week there may be more than fits into memory.
            while let Some(record) = poll_fn(|context| rows.as_mut().poll_next(context)).await {
                if !show(&record?) {
                    return Ok(());
                }
            }
        }
        transaction.commit().await?;
        Ok(())
    }

    /// The next events in the order of their lanes, at least one. After an error it is where it was.
    pub(super) async fn next(&mut self, connection: &mut PgConnection) -> log::error::Result<Vec<Record>> {
        loop {
            let mut transaction = connection.begin_with(BEGIN).await?;
            // All lanes are read together, so they always share a snapshot.
            let round = round::read(&mut transaction, round::READ, self.lanes, &self.cursors, PAGE).await?;
            transaction.commit().await?;
            // A crash takes back what is not on disk, and hands its numbers out again: neither is it shown, nor does a cursor that
            // outlives its connection move past it.
            flush::until_durable(connection, round.facts.inserted, round.facts.flushed).await?;
            let mut records = Vec::with_capacity(round.len());
            for (lane, page) in round.pages {
                records.extend(page.records);
                self.cursors.insert(lane, page.end);
            }
            if !records.is_empty() {
                self.pause = SHORTEST;
                // Across lanes there is no order; for the eye that of writing.
                records.sort_by_key(|record| record.seq);
                return Ok(records);
            }
            // In the middle of a late set there is more to read.
            if self.cursors.values().all(|cursor| cursor.late.is_none()) {
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(LONGEST);
            }
        }
    }
}
