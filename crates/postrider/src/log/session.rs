//! A connection that is fit to read the log: every setting the algorithm relies on is set *and verified*.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection, Row};

use super::error::{Error, Result};
use super::servers::Servers;
use crate::schema;

/// Set at connect, whatever the role or the database has by default. A default of SERIALIZABLE would make our read fail *the user's*
/// transaction, a timeout of the role's would fail rounds for ever or end a session that waits for something to settle.
const MANNERS: &[(&str, &str)] = &[
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("synchronous_commit", "on"),
    ("statement_timeout", "1min"),
    ("lock_timeout", "5s"),
    // A reader that is frozen inside a transaction holds locks that others need to take its lanes over.
    ("idle_in_transaction_session_timeout", "2s"),
    ("idle_session_timeout", "0"),
    // Rows that a policy hides would be passed by as if they were not there; now the statement fails.
    ("row_security", "off"),
    // No function of somebody else's stands before the server's own.
    ("search_path", "pg_catalog, pg_temp"),
];

/// Set at connect: with a sequential or bitmap scan a round costs with the history; a custom plan costs planning in every round.
/// Parked events need it as much: where a role had index scans off, freeing ten keys of 2,500 parked events took more than 20 s.
const PLANS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_indexscan", "on"),
    ("max_parallel_workers_per_gather", "0"),
    ("plan_cache_mode", "force_generic_plan"),
];

fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    MANNERS.iter().chain(PLANS).copied()
}

/// For connections beside those that read: the timeouts, the isolation and the plans that our statements are made for.
pub fn well_mannered(options: PgConnectOptions) -> PgConnectOptions {
    quiet(options.options(settings()))
}

/// The driver logs slow statements, each with its whole text: a round that waits for a busy server is no news, and not in SQL.
fn quiet(options: PgConnectOptions) -> PgConnectOptions {
    options.disable_statement_logging()
}

/// Connects, sets, verifies, and refuses a standby or a schema this program does not know.
pub async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    // With the first message of the connection, never by SET: through a pooler in transaction mode a SET would stay behind in a
    // session that the next user gets (an application then ran with enable_seqscan = off). Such a pooler refuses this message.
    let options = well_mannered(options.clone().application_name("postrider"));
    let mut connection = options.connect().await.map_err(refused_by_pooler)?;
    verify(&mut connection).await?;
    if sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut connection).await? {
        return Err(Error::NotPrimary);
    }
    schema::check_version(&mut connection).await?;
    Ok(connection)
}

/// As [`connect`], to the first of several servers that will do; and which it is.
pub(super) async fn connect_to(servers: &Servers) -> Result<(PgConnection, PgConnectOptions)> {
    servers.find(|options| async move { connect(&options).await }).await
}

fn refused_by_pooler(error: sqlx::Error) -> Error {
    let refused = error.as_database_error().is_some_and(|said| {
        said.code().as_deref() == Some("08P01") && said.message().contains("startup parameter")
    });
    if refused { Error::Pooler(error) } else { error.into() }
}

async fn verify(connection: &mut PgConnection) -> Result<()> {
    // A simple query: a pooler that silently drops settings would lose a prepared statement too, and that says less.
    let asked: Vec<String> = settings().map(|(name, _)| format!("current_setting('{name}')")).collect();
    let statement = AssertSqlSafe(format!("select {}", asked.join(", ")));
    let row = connection.fetch_one(sqlx::raw_sql(statement)).await?;
    for (place, (name, wanted)) in settings().enumerate() {
        let found: String = row.try_get(place)?;
        if found != wanted {
            return Err(Error::Setting { name, found, wanted: wanted.to_owned() });
        }
    }
    Ok(())
}
