//! Where the database is: one server, or several of which one is the primary, as libpq takes them.
//!
//! sqlx connects to one host. Here every host of a list becomes options of its own, so that each has its own name to be verified by TLS
//! and its own line in the password file.

mod parse;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _, PgConnection, Row as _};

use super::error::{Error, Result};

/// For one host of several: a host that swallows packets must not keep us from the others.
const PATIENCE: Duration = Duration::from_secs(3);

/// Which of the servers will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The first that answers.
    Any,
    /// The first that is no standby.
    Primary,
}

/// The servers that may have the database, in the order in which they are tried. Clones share the knowledge where the primary was last.
///
/// Made from a URL such as `postgres://h1,h2:5433/db?target_session_attrs=read-write`, from the variables of libpq or from the options of
/// one server. Of several the primary is taken, unless `target_session_attrs=any` is said.
// No `Debug` by derive: the options of a connection print its password.
#[derive(Clone)]
pub struct Servers {
    each: Vec<PgConnectOptions>,
    wanted: Wanted,
    last: Arc<AtomicUsize>,
}

impl Servers {
    fn new(each: Vec<PgConnectOptions>, wanted: Wanted) -> Self {
        Self { each, wanted, last: Arc::default() }
    }

    /// By `PGHOST`, `PGPORT`, `PGTARGETSESSIONATTRS` and so on, as psql does.
    pub fn from_env() -> Result<Self, sqlx::Error> {
        "postgres://".parse()
    }

    /// The options of each.
    pub fn each(&self) -> &[PgConnectOptions] {
        &self.each
    }

    /// Which of them was found last; before, the first.
    pub fn place(&self) -> usize {
        self.last.load(Ordering::Relaxed)
    }

    /// The one that was found last; before, the first.
    pub fn last(&self) -> &PgConnectOptions {
        &self.each[self.place()]
    }

    /// The same servers with other options for each.
    #[must_use]
    pub fn map(self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self { each: self.each.into_iter().map(change).collect(), ..self }
    }

    /// Whether these are the same, password and all.
    pub fn is_same(&self, other: &Self) -> bool {
        // The options of a connection cannot be compared; what they print can. It is compared and goes nowhere.
        let print = |servers: &Self| format!("{:?} {:?}", servers.each, servers.wanted);
        print(self) == print(other)
    }

    /// Connects to the first that will do.
    pub async fn connect(&self) -> Result<PgConnection> {
        let wanted = self.wanted;
        let (connection, _) = self
            .find(|options| async move {
                let mut connection = options.connect().await?;
                if wanted == Wanted::Primary && is_standby(&mut connection).await? {
                    return Err(Error::NotPrimary);
                }
                Ok(connection)
            })
            .await?;
        Ok(connection)
    }

    /// Makes an attempt with each until one comes to something. What is wrong with a server is kept for the error; what would be wrong with
    /// all of them, such as a password, ends the search as in libpq.
    pub(super) async fn find<T, F: Future<Output = Result<T>>>(
        &self,
        attempt: impl Fn(PgConnectOptions) -> F,
    ) -> Result<(T, PgConnectOptions)> {
        if let [only] = self.each.as_slice() {
            return Ok((attempt(only.clone()).await?, only.clone()));
        }
        let mut tried = Vec::new();
        for place in self.order() {
            let options = &self.each[place];
            let reason = match tokio::time::timeout(PATIENCE, attempt(options.clone())).await {
                Ok(Ok(found)) => {
                    self.last.store(place, Ordering::Relaxed);
                    return Ok((found, options.clone()));
                }
                Ok(Err(error)) => reason(&error).ok_or(error)?,
                Err(_) => format!("no answer within {} seconds", PATIENCE.as_secs()),
            };
            tried.push(format!("{}: {reason}", address(options)));
        }
        Err(Error::NoPrimary { tried: tried.join("; ") })
    }

    /// The primary is most probably where it was; with `any` the order is the user's.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let first = if self.wanted == Wanted::Any { 0 } else { self.place() };
        std::iter::once(first).chain((0..self.each.len()).filter(move |place| *place != first))
    }
}

impl From<PgConnectOptions> for Servers {
    fn from(options: PgConnectOptions) -> Self {
        Self::new(vec![options], Wanted::Any)
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.last().get_database();
        f.debug_struct("Servers").field("at", &self.to_string()).field("database", &database).finish()
    }
}

/// Their addresses.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.each.iter().map(address).collect();
        f.write_str(&addresses.join(", "))
    }
}

fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// What is wrong with a server, if another one may do better.
fn reason(error: &Error) -> Option<String> {
    match error {
        Error::NotPrimary => Some("a standby".to_owned()),
        Error::Database(sqlx::Error::Io(error)) => Some(error.to_string()),
        Error::Database(error @ sqlx::Error::Tls(_)) => Some(error.to_string()),
        error => error.is_transient().then(|| error.to_string()),
    }
}

/// By a simple query: a pooler in between would lose a prepared statement.
async fn is_standby(connection: &mut PgConnection) -> Result<bool> {
    let row = connection.fetch_one(sqlx::raw_sql("select pg_is_in_recovery()")).await?;
    Ok(row.try_get(0)?)
}
