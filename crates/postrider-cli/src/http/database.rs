//! What only the database knows: backlog, lag, parked events, the ring. Asked when somebody asks us, over a connection that does
//! nothing else, at most once a second, and never for longer than two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use postrider::capture::{self, Missing};
use postrider::log::{Error, Servers, advice};
use postrider::outbox::{self, Misfits};
use sqlx::{ConnectOptions as _, PgConnection};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::failure::redact;

/// Two scrapers and a probe in one second cost one look.
const FRESH: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);

/// The server gives up when we do, writes nothing, and takes the plans that the views are made for.
const SETTINGS: &[(&str, &str)] = &[
    ("default_transaction_read_only", "on"),
    ("statement_timeout", "2s"),
    ("lock_timeout", "1s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("max_parallel_workers_per_gather", "0"),
];

/// Asks, and remembers for a second.
pub(super) struct Database {
    servers: Servers,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    connection: Option<PgConnection>,
    answer: Option<(Instant, Up)>,
    seen: Option<(Instant, Arc<Seen>)>,
}

/// Whether the database answers, or why not, in words that are safe to show.
pub(super) type Up = Result<Answer, String>;

/// An answer to the smallest question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) took: Duration,
    /// By how many seconds its clock is ahead.
    pub(super) clock_offset: f64,
}

/// Everything that was asked; what is `None` could not be had.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) up: Up,
    pub(super) backlog: Option<Vec<Backlog>>,
    pub(super) lag: Option<Vec<(String, f64)>>,
    pub(super) parked: Option<Vec<Parked>>,
    pub(super) ring: Option<Ring>,
    /// The oldest open one and the oldest prepared one, in seconds.
    pub(super) transactions: Option<(f64, f64)>,
    /// What could not be captured, by table.
    pub(super) uncaptured: Option<Vec<Missing>>,
    /// Rows of outbox tables that cannot become events.
    pub(super) misfits: Option<Vec<Misfits>>,
}

#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) sink: String,
    pub(super) events: i64,
    pub(super) is_exact: bool,
}

#[derive(Debug)]
pub(super) struct Parked {
    pub(super) sink: String,
    pub(super) waiting: i64,
    pub(super) behind: i64,
    pub(super) dead: i64,
}

#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) current_age: Option<f64>,
    pub(super) filled: usize,
    pub(super) bytes: i64,
    /// How many closed slots each sink holds; 0 for those that hold none.
    pub(super) held: BTreeMap<String, usize>,
}

impl Seen {
    fn nothing(up: Up) -> Self {
        Self {
            up,
            backlog: None,
            lag: None,
            parked: None,
            ring: None,
            transactions: None,
            uncaptured: None,
            misfits: None,
        }
    }

    /// Each part, and whether it could not be had.
    pub(super) fn parts(&self) -> [(&'static str, bool); 7] {
        [
            ("backlog", self.backlog.is_none()),
            ("lag", self.lag.is_none()),
            ("parked", self.parked.is_none()),
            ("ring", self.ring.is_none()),
            ("transactions", self.transactions.is_none()),
            ("capture", self.uncaptured.is_none()),
            ("outbox", self.misfits.is_none()),
        ]
    }
}

impl Database {
    pub(super) fn new(servers: &Servers) -> Self {
        let servers = servers.clone().map(|options| {
            let options = options.application_name("postrider metrics").options(SETTINGS.iter().copied());
            // These come with every scrape.
            options.disable_statement_logging()
        });
        Self { servers, known: Mutex::default() }
    }

    /// Whether it answers.
    pub(super) async fn answers(&self) -> Up {
        let mut known = self.known.lock().await;
        self.ping(&mut known, Instant::now() + PATIENCE).await
    }

    /// Everything.
    pub(super) async fn look(&self) -> Arc<Seen> {
        let mut known = self.known.lock().await;
        if let Some((at, seen)) = &known.seen
            && at.elapsed() < FRESH
        {
            return Arc::clone(seen);
        }
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Seen::nothing(self.ping(&mut known, deadline).await);
        // Taken out while in use: if the asker goes away in the middle, the connection goes with it.
        if let Some(mut connection) = known.connection.take() {
            let whole = timeout_at(deadline, ask_everything(&mut connection, &mut seen)).await;
            known.connection = whole.is_ok().then_some(connection);
        }
        let seen = Arc::new(seen);
        known.seen = Some((Instant::now(), Arc::clone(&seen)));
        seen
    }

    async fn ping(&self, known: &mut Known, deadline: Instant) -> Up {
        if let Some((at, up)) = &known.answer
            && at.elapsed() < FRESH
            && (up.is_err() || known.connection.is_some())
        {
            return up.clone();
        }
        let connection = known.connection.take();
        let asked = timeout_at(deadline, self.ask(connection)).await;
        let up = match asked {
            Ok(Ok((connection, answer))) => {
                known.connection = Some(connection);
                Ok(answer)
            }
            Ok(Err(error)) => Err(in_words(&error)),
            Err(_) => Err(format!("no answer within {} seconds", PATIENCE.as_secs())),
        };
        known.answer = Some((Instant::now(), up.clone()));
        up
    }

    async fn ask(&self, connection: Option<PgConnection>) -> Result<(PgConnection, Answer), Error> {
        if let Some(mut connection) = connection
            && let Ok(answer) = clock(&mut connection).await
        {
            return Ok((connection, answer));
        }
        // None yet, or the server was restarted behind it.
        let mut connection = self.servers.connect().await?;
        let answer = clock(&mut connection).await?;
        Ok((connection, answer))
    }
}

async fn clock(connection: &mut PgConnection) -> sqlx::Result<Answer> {
    let before = Instant::now();
    let theirs: OffsetDateTime = sqlx::query_scalar("select clock_timestamp()").fetch_one(connection).await?;
    let took = before.elapsed();
    // Theirs was read somewhere between; the middle is wrong by half of `took` at most.
    let ours = OffsetDateTime::from(SystemTime::now()) - took / 2;
    Ok(Answer { took, clock_offset: (theirs - ours).as_seconds_f64() })
}

/// What fails is left out; the rest is still worth having.
async fn ask_everything(connection: &mut PgConnection, seen: &mut Seen) {
    seen.lag = had("lag", sqlx::query_as(include_str!("sql/lag.sql")).fetch_all(&mut *connection).await);
    seen.parked = had("parked", parked(connection).await);
    let transactions = sqlx::query_as(include_str!("sql/transactions.sql")).fetch_one(&mut *connection).await;
    seen.transactions = had("transactions", transactions);
    seen.uncaptured = had("capture", capture::missing(connection).await);
    seen.misfits = had("outbox", outbox::misfits(connection).await);
    seen.ring = had("ring", ring_of(connection).await);
    // Last: with a large backlog it takes longest.
    seen.backlog = had("backlog", backlog(connection).await);
}

async fn parked(connection: &mut PgConnection) -> sqlx::Result<Vec<Parked>> {
    let rows = sqlx::query_as(include_str!("sql/parked.sql")).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|(sink, waiting, behind, dead)| Parked { sink, waiting, behind, dead }).collect())
}

async fn backlog(connection: &mut PgConnection) -> sqlx::Result<Vec<Backlog>> {
    let rows = sqlx::query_as(include_str!("sql/backlog.sql")).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|(sink, events, is_exact)| Backlog { sink, events, is_exact }).collect())
}

async fn ring_of(connection: &mut PgConnection) -> sqlx::Result<Ring> {
    type Slot = (bool, bool, i64, Option<f64>, Vec<String>);
    let slots: Vec<Slot> = sqlx::query_as(include_str!("sql/ring.sql")).fetch_all(&mut *connection).await?;
    let sinks: Vec<String> =
        sqlx::query_scalar("select s.name from postrider.sinks s").fetch_all(connection).await?;
    let mut ring = Ring { held: sinks.into_iter().map(|sink| (sink, 0)).collect(), ..Ring::default() };
    for (is_current, is_empty, bytes, age, held_by) in slots {
        ring.bytes += bytes;
        ring.filled += usize::from(!is_empty);
        if is_current {
            ring.current_age = age;
        } else if !is_empty {
            for sink in held_by {
                *ring.held.entry(sink).or_default() += 1;
            }
        }
    }
    Ok(ring)
}

fn had<T, E: std::fmt::Display>(part: &str, result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::debug!(part, %error, "a part of the metrics could not be had");
            None
        }
    }
}

fn in_words(error: &Error) -> String {
    let error = match error {
        Error::Database(error) => error,
        error => return redact(&error.to_string()),
    };
    redact(&advice::chain(error).join(": "))
}
