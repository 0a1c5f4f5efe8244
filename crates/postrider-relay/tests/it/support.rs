//! Databases with the schema, relays, and a sink that does what a test wants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::log::Start;
use postrider::schema::{self, Install};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{
    Message, Outcome, Refusal, RefusalKind, Relay, RelaySettings, Report, Sink, SinkSettings, Unavailable,
    UnavailableKind,
};
use postrider_testkit::{Database, PostgresServer, Template, Version, postgres};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;

/// Long enough for anything that is going to happen at all on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(2);

pub async fn database() -> Database {
    database_on(&postgres(Version::default()).await.unwrap()).await
}

pub async fn database_on(server: &PostgresServer) -> Database {
    let template = Template::new("postrider_relay", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    server.database(&template).await.unwrap()
}

/// What a sink does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Take,
    Refuse,
    Unavailable,
    #[expect(dead_code, reason = "for tests of sinks that never answer")]
    Hang,
}

type Decide = dyn Fn(&Message<'_>) -> Answer + Send + Sync;

/// A sink in memory: it keeps what it took and answers as it is told. It keeps the contract: a key stops at its first refusal.
#[derive(Clone)]
pub struct Probe {
    decide: Arc<Mutex<Arc<Decide>>>,
    taken: Arc<watch::Sender<Vec<Taken>>>,
}

/// An event as a [`Probe`] took it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub id: String,
    pub key: Option<String>,
    pub r#type: String,
}

impl Probe {
    pub fn new() -> Self {
        Self {
            decide: Arc::new(Mutex::new(Arc::new(|_: &Message<'_>| Answer::Take))),
            taken: Arc::new(watch::channel(Vec::new()).0),
        }
    }

    pub fn answering(decide: impl Fn(&Message<'_>) -> Answer + Send + Sync + 'static) -> Self {
        let probe = Self::new();
        probe.answer(decide);
        probe
    }

    /// From now on.
    pub fn answer(&self, decide: impl Fn(&Message<'_>) -> Answer + Send + Sync + 'static) {
        *self.decide.lock().unwrap() = Arc::new(decide);
    }

    pub fn target(&self) -> Target {
        let probe = self.clone();
        Target::Custom(Custom::new("probe", move || {
            let probe = probe.clone();
            Box::pin(async move { Ok(Box::new(probe) as Box<dyn Sink>) })
        }))
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.taken.borrow().clone()
    }

    pub fn has(&self, id: &str) -> bool {
        self.taken.borrow().iter().rev().any(|taken| taken.id == id)
    }

    pub fn count(&self) -> usize {
        self.taken.borrow().len()
    }

    /// Waits until it has taken so many.
    pub async fn wait_for(&self, count: usize) -> Vec<Taken> {
        let mut taken = self.taken.subscribe();
        // What it waits for is borrowed from the sender, who must not be kept from sending.
        let came = tokio::time::timeout(PATIENCE, taken.wait_for(|taken| taken.len() >= count)).await.is_ok();
        assert!(came, "{} of {count} events came", self.taken().len());
        self.taken()
    }
}

impl Sink for Probe {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let decide = Arc::clone(&*self.decide.lock().unwrap());
            let mut outcomes = Vec::new();
            let mut stopped: Vec<String> = Vec::new();
            let mut unavailable = None;
            for message in batch {
                let key = message.record.key.clone();
                if unavailable.is_some() || key.as_ref().is_some_and(|key| stopped.contains(key)) {
                    outcomes.push(Outcome::NotSent);
                    continue;
                }
                outcomes.push(match decide(message) {
                    Answer::Take => {
                        let taken =
                            Taken { id: message.id.to_string(), key, r#type: message.record.r#type.clone() };
                        self.taken.send_modify(|all| all.push(taken));
                        Outcome::Delivered
                    }
                    Answer::Refuse => {
                        stopped.extend(key);
                        Outcome::Refused(Refusal {
                            kind: RefusalKind::Rejected,
                            reason: "the probe says no".to_owned(),
                        })
                    }
                    Answer::Unavailable => {
                        unavailable =
                            Some(Unavailable::new(UnavailableKind::Connection, "the probe is away"));
                        Outcome::NotSent
                    }
                    Answer::Hang => std::future::pending().await,
                });
            }
            Report { outcomes, unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

/// A sink of this name that begins with the first event.
pub fn sink(name: &str, target: Target) -> SinkSettings {
    SinkSettings { start: Start::Earliest, ..SinkSettings::new(name, target) }
}

/// Settings with a lease of a second.
pub fn settings(database: &Database, sinks: Vec<SinkSettings>) -> RelaySettings {
    let mut settings = RelaySettings::new(database.url().parse().unwrap(), sinks);
    settings.log.lease = Duration::from_secs(1);
    settings
}

pub fn start(database: &Database, sinks: Vec<SinkSettings>) -> Relay {
    Relay::start(settings(database, sinks)).unwrap()
}

pub async fn emit(connection: &mut PgConnection, event_type: &str, key: Option<&str>) {
    sqlx::query("select postrider.emit($1, '{}', key => $2)")
        .bind(event_type)
        .bind(key)
        .execute(connection)
        .await
        .unwrap();
}

/// Emits so many events over so many keys in one statement; the type is the number.
pub async fn emit_many(connection: &mut PgConnection, from: i64, count: i64, keys: i64) {
    sqlx::query("select count(postrider.emit(n::text, '{}', key => 'k' || n % $3)) from generate_series($1, $1 + $2 - 1) n")
        .bind(from)
        .bind(count)
        .bind(keys)
        .execute(connection)
        .await
        .unwrap();
}

/// Whether every key's events came in the order of their numbers, each once.
pub fn assert_in_order(taken: &[Taken]) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for event in taken {
        let number: i64 = event.r#type.parse().unwrap();
        let key = event.key.as_deref().unwrap();
        if let Some(before) = last.insert(key, number) {
            assert!(before < number, "key {key}: {number} after {before}");
        }
    }
}

/// Waits until a query that answers yes or no says yes.
pub async fn until(connection: &mut PgConnection, question: &'static str) {
    let asked = async {
        while !sqlx::query_scalar::<_, bool>(question).fetch_one(&mut *connection).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asked).await.is_ok(), "never true: {question}");
}
