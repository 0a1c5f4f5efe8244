//! Takes rows into the log where no trigger does it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::functions::{self, Answer, answered, called};
use super::mapping::Mapping;
use super::marks::{NO_ROWS, Task};

/// The statements for one table.
#[derive(Debug, Clone)]
pub(super) struct Mover {
    outbox: Outbox,
    transfer: String,
    /// Claims of somebody else: how many are young, and those that are not taken back.
    claims: Option<[String; 2]>,
}

impl Mover {
    pub(super) async fn of(
        connection: &mut PgConnection,
        outbox: &Outbox,
        mapping: &Mapping,
    ) -> Result<Self> {
        let function = functions::name(connection, mapping, "move").await?;
        let keep = functions::name(connection, mapping, "keep").await?;
        let has_claims = mapping.claimed.is_some() && mapping.sent.is_some();
        let asked = |task: Task| format!("select {}", called(&task.call(&keep, NO_ROWS, "$1")));
        Ok(Self {
            outbox: outbox.clone(),
            transfer: format!("select {}", called(&format!("{function}($1, $2)"))),
            claims: has_claims.then(|| [Task::Claimed, Task::TakeBack].map(asked)),
        })
    }

    /// Moves so many rows; how many it were, or `None` if another one keeps the table.
    pub(super) async fn transfer(
        &self,
        connection: &mut PgConnection,
        keeper: Uuid,
        batch: u32,
    ) -> Result<Option<u64>> {
        let answer: Answer = sqlx::query_as(AssertSqlSafe(self.transfer.clone()))
            .bind(keeper)
            .bind(i32::try_from(batch).unwrap_or(i32::MAX))
            .fetch_one(connection)
            .await?;
        Ok(u64::try_from(answered(&self.outbox.name, answer)?).ok())
    }

    /// Takes back what another poller has claimed and left. While it is at work nothing is moved: its rows come first.
    pub(super) async fn take_back(&self, connection: &mut PgConnection) -> Result<()> {
        let Some([young, take_back]) = &self.claims else { return Ok(()) };
        let stale_after = self.outbox.stale_after;
        let claims = self.counted(connection, young, stale_after).await?;
        if claims > 0 {
            return Err(Error::Claimed { table: self.outbox.name.clone(), claims, stale_after });
        }
        let taken = self.counted(connection, take_back, stale_after).await?;
        if taken > 0 {
            tracing::info!(
                outbox = self.outbox.name,
                rows = taken,
                "claims that another poller had left were taken back"
            );
        }
        Ok(())
    }

    async fn counted(&self, connection: &mut PgConnection, asked: &str, age: Duration) -> Result<i64> {
        let answer: Answer = sqlx::query_as(AssertSqlSafe(asked.to_owned()))
            .bind(age.as_secs_f64())
            .fetch_one(connection)
            .await?;
        answered(&self.outbox.name, answer)
    }
}
