//! A connection that is fit to read the log: every setting the algorithm relies on is set *and verified*.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Row};

use super::error::{Error, Result};
use crate::schema;

/// Set at connect. A database default of SERIALIZABLE would make our read fail *the user's* transaction; with a sequential or
/// bitmap scan a round costs with the history; a custom plan costs planning in every round.
const SETTINGS: &[(&str, &str)] = &[
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("synchronous_commit", "on"),
    ("statement_timeout", "60s"),
    ("lock_timeout", "5s"),
    ("idle_in_transaction_session_timeout", "30s"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_indexscan", "on"),
    ("max_parallel_workers_per_gather", "0"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// Connects, sets, verifies, and refuses a standby or a schema this program does not know.
pub async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    let mut connection = options.clone().application_name("postrider").connect().await?;
    for (name, value) in SETTINGS {
        sqlx::query("select set_config($1, $2, false)")
            .bind(name)
            .bind(value)
            .execute(&mut connection)
            .await?;
    }
    verify(&mut connection).await?;
    if sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut connection).await? {
        return Err(Error::NotPrimary);
    }
    schema::check_version(&mut connection).await?;
    Ok(connection)
}

async fn verify(connection: &mut PgConnection) -> Result<()> {
    let names: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    let rows = sqlx::query("select current_setting(name) from unnest($1::text[]) with ordinality as s (name, place) order by place")
        .bind(names)
        .fetch_all(connection)
        .await?;
    for (row, (name, wanted)) in rows.iter().zip(SETTINGS) {
        let found: String = row.try_get(0)?;
        // The server may print a time in another unit (60s as 1min).
        if found != *wanted && !(found == "1min" && *wanted == "60s") {
            return Err(Error::Setting { name, found, wanted: (*wanted).to_owned() });
        }
    }
    Ok(())
}
