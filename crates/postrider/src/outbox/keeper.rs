//! Keeps one adopted table: has its lease, moves its rows where no trigger does, and removes those that were sent long ago.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::declaration::{Mode, Outbox};
use super::failure::{Error, Result};
use super::functions;
use super::lifecycle::Lifecycle;
use super::mapping::Mapping;
use super::misfits::{Looker, Misfits};
use super::mover::Mover;
use crate::capture;

/// How often claims of others are looked for.
const CLAIMS: Duration = Duration::from_mins(1);
/// How often rows are looked for that can be deleted.
const CLEANUP: Duration = Duration::from_secs(30);
/// How many rows one statement deletes, and how many when one of them cannot be deleted.
const CLEANED: [i32; 3] = [1000, 50, 1];
/// So many of those are passed over, and for so long.
const PASSED: (i32, Duration) = (100, Duration::from_mins(10));
/// How often rows are looked for that cannot become events, and how many times as long as that takes it rests at least: without an
/// index it reads the table.
const MISFITS: (Duration, u32) = (Duration::from_secs(30), 100);

/// While more waits, each batch is twice the one before, up to this: a server whose statistics are old finds the first row that waits
/// behind all that do not (0.45 s behind 200,000), so there should be few batches.
const LARGEST: u32 = 10_000;
/// How much less is tried when somebody has something locked that it takes to move a batch.
const LESS: u32 = 16;

/// One of any number of keepers of a table, of which one works at a time.
#[derive(Debug)]
pub struct Keeper {
    outbox: Outbox,
    table: String,
    oid: i64,
    /// Those that it calls, which belong to the table's owner.
    functions: Vec<String>,
    me: Uuid,
    name: String,
    lease: Duration,
    mover: Option<Mover>,
    lifecycle: Option<Lifecycle>,
    looker: Looker,
    /// What it found last, and when it looks again.
    misfits: Option<Misfits>,
    looks_at: Option<Instant>,
    /// How many rows are moved next.
    batch: u32,
    /// Held until then, by our own clock from before it was asked for.
    renewed: Option<Instant>,
    claims: Option<Instant>,
    cleanup: Option<Instant>,
    /// Which of the sizes of a set is deleted next.
    cleaned: usize,
    /// How many of the oldest rows that were sent cannot be deleted, since the first of them, and why.
    passed: i32,
    passed_since: Option<Instant>,
    trouble: Option<String>,
    /// What the database was told of troubles.
    told: Option<String>,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worked {
    /// Another one keeps the table.
    pub stands_by: bool,
    /// Rows that came into the log.
    pub moved: u64,
    /// There is more to do at once.
    pub has_more: bool,
    /// Somebody has something locked that it takes to move even one row: it is tried again.
    pub is_locked: bool,
    /// What went, now and then, into looking for rows that cannot become events. The ordinary rounds take no longer for it.
    pub aside: Duration,
}

impl Keeper {
    /// Looks at the table. `name` is shown to operators; after `lease` without a word another one takes over.
    pub async fn open(
        connection: &mut PgConnection,
        outbox: &Outbox,
        name: impl Into<String>,
        lease: Duration,
    ) -> Result<Self> {
        let mapping = Mapping::of(connection, outbox).await?;
        let mover = match outbox.mode {
            Mode::Poll => Some(Mover::of(connection, outbox, &mapping).await?),
            Mode::Trigger => None,
        };
        Ok(Self {
            outbox: outbox.clone(),
            table: mapping.shape.name.clone(),
            oid: mapping.shape.oid,
            functions: functions::called_by_relays(connection, outbox, &mapping).await?,
            me: Uuid::now_v7(),
            name: name.into(),
            lease,
            mover,
            lifecycle: Lifecycle::of(connection, &mapping).await?,
            looker: Looker::of(connection, &mapping).await?,
            misfits: None,
            looks_at: None,
            batch: outbox.batch,
            renewed: None,
            claims: None,
            cleanup: None,
            cleaned: 0,
            passed: 0,
            passed_since: None,
            trouble: None,
            told: None,
        })
    }

    /// One round.
    pub async fn work(&mut self, connection: &mut PgConnection) -> Result<Worked> {
        if let Some(function) = capture::not_callable(connection, &self.functions, self.oid).await? {
            return Err(Error::NotCallable { table: self.table.clone(), function });
        }
        if !self.holds(connection).await? {
            return Ok(Worked { stands_by: true, ..Worked::default() });
        }
        let mut worked = Worked::default();
        if let Some(mover) = &self.mover {
            if is_due(&mut self.claims, CLAIMS)
                && let Err(error) = mover.take_back(connection).await
            {
                self.claims = None;
                if error.is_locked() {
                    // Who has them locked is at work on them, and they come before the others of their keys.
                    return Ok(Worked { is_locked: true, ..worked });
                }
                return Err(error);
            }
            match mover.transfer(connection, self.me, self.batch).await {
                Err(error) if error.is_locked() => {
                    worked.is_locked = self.batch == 1;
                    worked.has_more = !worked.is_locked;
                    self.batch = (self.batch / LESS).max(1);
                    return Ok(worked);
                }
                moved => {
                    let Some(moved) = moved? else {
                        self.renewed = None;
                        return Ok(Worked { stands_by: true, ..worked });
                    };
                    worked.moved = moved;
                    worked.has_more = moved >= u64::from(self.batch);
                    let usual = self.outbox.batch;
                    self.batch =
                        if worked.has_more { (2 * self.batch).min(LARGEST.max(usual)) } else { usual };
                }
            }
        }
        if !worked.has_more {
            let begun = Instant::now();
            self.look_for_misfits(connection).await?;
            worked.aside = begun.elapsed();
        }
        if let Some(age) = self.outbox.cleanup
            && is_due(&mut self.cleanup, CLEANUP)
            && self.clean(connection, age).await?
        {
            self.cleanup = None;
            worked.has_more = true;
        }
        Ok(worked)
    }

    /// Deletes a set of rows that were sent so long ago; whether there may be more. One that cannot be deleted, because something refers to it or a
    /// trigger minds, stays and holds up no other.
    async fn clean(&mut self, connection: &mut PgConnection, age: Duration) -> Result<bool> {
        let Some(lifecycle) = &self.lifecycle else { return Ok(false) };
        if self.passed_since.is_some_and(|since| since.elapsed() > PASSED.1) {
            (self.passed, self.passed_since, self.trouble) = (0, None, None);
        }
        let set = CLEANED[self.cleaned];
        match lifecycle.clean(connection, age, set, self.passed).await {
            // The next time, then.
            Err(error) if error.is_locked() => Ok(false),
            Err(error) if error.is_of_a_row() => {
                if set > 1 {
                    self.cleaned += 1;
                    return Ok(true);
                }
                self.cleaned = 0;
                if self.trouble.is_none() {
                    tracing::warn!(
                        outbox = self.table,
                        reason = %error,
                        "rows of the outbox table that were sent cannot be deleted, and stay"
                    );
                }
                self.passed += 1;
                self.passed_since.get_or_insert_with(Instant::now);
                self.trouble = Some(format!("rows that were sent cannot be deleted: {error}"));
                Ok(self.passed < PASSED.0)
            }
            deleted => {
                let has_more = deleted? == u64::from(set.unsigned_abs());
                if !has_more {
                    self.cleaned = 0;
                }
                Ok(has_more)
            }
        }
    }

    async fn look_for_misfits(&mut self, connection: &mut PgConnection) -> Result<()> {
        let begun = Instant::now();
        if self.looks_at.is_some_and(|looks_at| begun < looks_at) {
            return Ok(());
        }
        let found = self.looker.look(connection).await;
        let (pause, times) = MISFITS;
        self.looks_at = Some(begun + pause.max(begun.elapsed() * times));
        let found = match found {
            // The next time, then.
            Err(error) if error.is_locked() => return Ok(()),
            found => found?,
        };
        if found == self.misfits {
            return Ok(());
        }
        if let Some(Misfits { outbox, rows, source_id, reason, .. }) = &found {
            tracing::warn!(
                outbox,
                rows,
                first = source_id,
                reason,
                "rows of the outbox table cannot become events and stay where they are"
            );
        } else {
            tracing::info!(outbox = self.table, "every row of the outbox table can become an event again");
        }
        self.misfits = found;
        Ok(())
    }

    /// What operators are to be told of beside what it finds itself. It stands with the lease, which is renewed for it.
    pub fn tell(&mut self, trouble: Option<&str>) {
        let troubles: Vec<&str> = self.trouble.as_deref().into_iter().chain(trouble).collect();
        let told = (!troubles.is_empty()).then(|| troubles.join("; "));
        if told != self.told {
            (self.told, self.renewed) = (told, None);
        }
    }

    /// Takes the lease, or renews it when a third of it is over.
    async fn holds(&mut self, connection: &mut PgConnection) -> Result<bool> {
        let now = Instant::now();
        if self.renewed.is_some_and(|renewed| now.duration_since(renewed) < self.lease / 3) {
            return Ok(true);
        }
        let held: Result<Option<bool>, sqlx::Error> = sqlx::query_scalar(
            "insert into postrider.keepers as k (outbox, owner, name, expires_at, trouble)
             values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), $5)
             on conflict (outbox) do update
             set owner = excluded.owner, name = excluded.name, expires_at = excluded.expires_at, trouble = excluded.trouble
             where k.owner = excluded.owner or k.expires_at < clock_timestamp()
             returning true",
        )
        .bind(&self.table)
        .bind(self.me)
        .bind(&self.name)
        .bind(self.lease.as_secs_f64())
        .bind(&self.told)
        .fetch_optional(connection)
        .await;
        let held = match held.map_err(Error::from) {
            // By whoever has it, and moves a batch that takes long.
            Err(error) if error.is_locked() => None,
            held => held?,
        };
        if self.renewed.is_none() && held.is_some() {
            self.claims = None;
        }
        self.renewed = held.map(|_| now);
        Ok(held.is_some())
    }

    /// Hands the table back, for another to take it at once.
    pub async fn close(self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query("delete from postrider.keepers where outbox = $1 and owner = $2")
            .bind(&self.table)
            .bind(self.me)
            .execute(connection)
            .await?;
        Ok(())
    }
}

/// Whether it is time again; if so it is noted.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= every);
    if due {
        *last = Some(now);
    }
    due
}
