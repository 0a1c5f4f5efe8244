//! Reading the log with cursors that live in memory alone.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use postrider::log::cursor::Cursor;
use postrider::log::{self, Record, round};
use sqlx::{Connection as _, PgConnection, Row as _};
use time::OffsetDateTime;

use super::filter::Filter;
use crate::failure::Failure;

const PAGE: i64 = 500;
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(250);

/// Only inside the transaction: a session that a pooler hands on must stay as it was. These are what a round's plan depends on.
const BEGIN: &str = "begin isolation level repeatable read read only;
    set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off;
    set local max_parallel_workers_per_gather = 0; set local plan_cache_mode = force_generic_plan";

/// The same for looking back: the index that finds a time is only used by bitmaps.
const BEGIN_BACK: &str = "begin isolation level repeatable read read only; set local jit = off";

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
}

impl Follow {
    /// Begins with what commits from now on. Before that shows what is asked for of the time before, seen by the same snapshot: what is
    /// in neither is not committed yet and comes later. `None` if nobody wants more.
    pub(super) async fn begin(
        connection: &mut PgConnection,
        filter: &Filter,
        past: Past,
        mut show: impl FnMut(&Record) -> Result<bool, Failure>,
    ) -> Result<Option<Self>, Failure> {
        let mut transaction = connection.begin_with(BEGIN_BACK).await.map_err(log::Error::from)?;
        let (follow, position) = Self::here(&mut transaction).await?;
        let statement = match past {
            Past::Nothing => None,
            Past::Since(since) => Some(sqlx::query_as::<_, Record>(include_str!("since.sql")).bind(since)),
            Past::Last(lines) => Some(sqlx::query_as(include_str!("last.sql")).bind(lines)),
        };
        if let Some(statement) = statement {
            let mut rows = statement
                .bind(filter.type_like())
                .bind(filter.key.as_deref())
                .bind(filter.tenant.as_deref())
                .bind(filter.entity.as_deref())
                .bind(position)
                .fetch(&mut *transaction);
            // As they come: of a week there may be more than fits into memory.
            while let Some(record) = poll_fn(|context| rows.as_mut().poll_next(context)).await {
                if !show(&record.map_err(log::Error::from)?)? {
                    return Ok(None);
                }
            }
        }
        transaction.commit().await.map_err(log::Error::from)?;
        Ok(Some(follow))
    }

    /// The end of the log as this transaction sees it.
    async fn here(connection: &mut PgConnection) -> log::error::Result<(Self, i64)> {
        let row = sqlx::query(
            "select coalesce(pg_sequence_last_value('postrider.seq'), 0), pg_current_snapshot()::text, postrider.lanes()::smallint",
        )
        .fetch_one(connection)
        .await?;
        let position: i64 = row.try_get(0)?;
        let snapshot: Arc<str> = Arc::from(row.try_get::<String, _>(1)?);
        let lanes: i16 = row.try_get(2)?;
        let cursors = (0..lanes).map(|lane| (lane, Cursor::new(position, Arc::clone(&snapshot)))).collect();
        let follow = Self { cursors, lanes: usize::try_from(lanes).unwrap_or_default(), pause: SHORTEST };
        Ok((follow, position))
    }

    /// The next events in the order of their lanes, at least one.
    pub(super) async fn next(&mut self, connection: &mut PgConnection) -> log::error::Result<Vec<Record>> {
        loop {
            let mut transaction = connection.begin_with(BEGIN).await?;
            // All lanes are read together, so they always share a snapshot.
            let round = round::read(&mut transaction, round::READ, self.lanes, &self.cursors, PAGE).await?;
            transaction.commit().await?;
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
