//! Moving rows into the log, where no trigger does it.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::mapping::{Mapping, moment};
use super::{functions, transfer};

/// The statements for one table.
#[derive(Debug, Clone)]
pub(super) struct Mover {
    outbox: Outbox,
    transfer: String,
    /// Claims of somebody else: how many are young, and those that are not taken back.
    young: Option<String>,
    take_back: Option<String>,
}

impl Mover {
    pub(super) async fn of(
        connection: &mut PgConnection,
        outbox: &Outbox,
        mapping: &Mapping,
    ) -> Result<Self> {
        let function = functions::name(connection, mapping, "move").await?;
        let claims = mapping.claimed.as_ref().zip(mapping.sent.as_ref()).map(|(claimed, sent)| {
            let foreign = format!(
                "o.{} is null and o.{} is not null and {}",
                sent.ident,
                claimed.ident,
                transfer::not_adopted(mapping, "o", transfer::ALL_NOTES)
            );
            let age = moment(claimed, "(clock_timestamp() - make_interval(secs => $1))");
            let (name, claimed) = (&mapping.shape.name, &claimed.ident);
            (
                format!("select count(*) from {name} o where {foreign} and o.{claimed} > {age}"),
                format!("update {name} o set {claimed} = null where {foreign} and o.{claimed} <= {age}"),
            )
        });
        let (young, take_back) = claims.unzip();
        Ok(Self { outbox: outbox.clone(), transfer: format!("select {function}($1, $2)"), young, take_back })
    }

    /// Moves so many rows; how many it were, or `None` if another one keeps the table.
    pub(super) async fn transfer(
        &self,
        connection: &mut PgConnection,
        keeper: Uuid,
        batch: u32,
    ) -> Result<Option<u64>> {
        let moved: i64 = sqlx::query_scalar(AssertSqlSafe(self.transfer.clone()))
            .bind(keeper)
            .bind(i32::try_from(batch).unwrap_or(i32::MAX))
            .fetch_one(connection)
            .await?;
        Ok(u64::try_from(moved).ok())
    }

    /// Takes back what another poller has claimed and left. While it is at work nothing is moved: its rows come first.
    pub(super) async fn take_back(&self, connection: &mut PgConnection) -> Result<()> {
        let (Some(young), Some(take_back)) = (&self.young, &self.take_back) else { return Ok(()) };
        let stale_after = self.outbox.stale_after;
        let claims: i64 = sqlx::query_scalar(AssertSqlSafe(young.clone()))
            .bind(stale_after.as_secs_f64())
            .fetch_one(&mut *connection)
            .await?;
        if claims > 0 {
            return Err(Error::Claimed { table: self.outbox.name.clone(), claims, stale_after });
        }
        let taken = sqlx::query(AssertSqlSafe(take_back.clone()))
            .bind(stale_after.as_secs_f64())
            .execute(connection)
            .await?
            .rows_affected();
        if taken > 0 {
            tracing::info!(
                outbox = self.outbox.name,
                rows = taken,
                "claims that another poller had left were taken back"
            );
        }
        Ok(())
    }
}
