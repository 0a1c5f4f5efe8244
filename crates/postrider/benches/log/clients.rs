//! Many clients that commit one event each: what the wake-up hint costs them.
//!
//! The clients stay connected and take very short turns, each kind as often first as last: a second later the same statement may
//! run at another speed, and only neighbours can be compared.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use postrider::log::ring::{self, Retention};
use postrider::log::{Start, sink};
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, Pairs};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;

use crate::idle::asleep;
use crate::world::{Running, World, run};

const AWAKE: &str = "4 emit with 32 clients, reader awake";
const ASLEEP: &str = "4 emit with 32 clients, reader asleep";
const PLAIN: &str = "4 emit with 32 clients, beside an insert";
const FULL: &str = "4 emit with 32 clients, every slot full and owed";
const NOTIFYING: &str = "4 every commit notifies (never so)";
const SILENT: &str = "emit without the hint";

const CLIENTS: usize = 32;
/// Hundreds of commits, and over before the machine is in another mood: a second each gave ratios between 0.77 and 1.27 of a
/// statement with itself.
const TURN: Duration = Duration::from_millis(150);
/// Not counted: everybody runs afterwards.
const WARM_UP: Duration = Duration::from_millis(30);

const PAYLOAD: &str = r#"{"order":7,"customer":"customer-7","total":4711,"currency":"EUR","note":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if bench.wants(FULL) {
        with_every_slot_full(world, bench).await?;
    }
    if ![AWAKE, ASLEEP, PLAIN, NOTIFYING].iter().any(|figure| bench.wants(figure)) {
        return Ok(());
    }
    let database = world.database().await?;
    let mut side = database.connect().await?;
    make_silent_emit(&mut side).await?;
    let mut clients = Clients::connect(&database).await?;
    with_a_reader(&database, &mut clients, &mut side, bench).await?;
    if bench.wants(NOTIFYING) {
        all_notify(&database, &mut clients, &mut side, bench).await?;
    }
    side.close().await?;
    Ok(())
}

/// The turns of one repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Awake,
    Silent,
    SilentAgain,
    Plain,
    Asleep,
}

async fn with_a_reader(
    database: &Database,
    clients: &mut Clients,
    side: &mut PgConnection,
    bench: &mut Bench,
) -> Result<()> {
    let (emit, silent, plain) = (emitting("emit"), emitting("emit_silent"), inserting());
    let mut reader = Running::start(database, "busy").await?;
    // Whoever comes first would pay for empty caches.
    for statement in [&emit, &silent, &plain] {
        clients.rate(statement, Duration::from_secs(1)).await?;
    }
    run(side, "checkpoint").await?;
    let mut kinds = vec![Turn::Awake, Turn::Silent, Turn::SilentAgain];
    kinds.extend(bench.wants(PLAIN).then_some(Turn::Plain));
    let (mut awake, mut beside, mut sleeping) = (Vec::new(), Vec::new(), Vec::new());
    let mut ticket = 0;
    for repetition in 0..usize::try_from(bench.size(160, 5))? {
        // Every kind comes first, last and in between equally often, forwards and backwards.
        let mut turns = kinds.clone();
        turns.rotate_left(repetition % kinds.len());
        if repetition / kinds.len() % 2 == 1 {
            turns.reverse();
        }
        let mut rates = Vec::new();
        for turn in &turns {
            let statement = match turn {
                Turn::Silent | Turn::SilentAgain => &silent,
                Turn::Plain => &plain,
                Turn::Awake | Turn::Asleep => &emit,
            };
            reader.drain();
            rates.push((*turn, clients.rate(statement, WARM_UP).await?));
            if reader.drain() == 0 {
                // The disk stood still for a whole turn, or the reader has ended: then that says why.
                reader.next().await?;
            }
        }
        if bench.wants(ASLEEP) && repetition % 4 == 0 {
            ticket = asleep(side, ticket).await?;
            // From the first commit on: it is the one that wakes the reader.
            rates.push((Turn::Asleep, clients.rate(&emit, Duration::ZERO).await?));
        }
        let of = |turn: Turn| rates.iter().find(|(of, _)| *of == turn).map(|(_, rate)| *rate);
        let (without, again) =
            (of(Turn::Silent).context("no turn")?, of(Turn::SilentAgain).context("no turn")?);
        let with = of(Turn::Awake).context("no turn")?;
        awake.push((with, without, again));
        beside.extend(of(Turn::Plain).map(|plain| (with, plain, plain)));
        sleeping.extend(of(Turn::Asleep).map(|rate| (rate, without, again)));
    }
    reader.stop().await?;
    let control = Pairs::of(&awake);
    bench.add(Figure::paired(AWAKE, "events/s", SILENT, &control).goal(Goal::RatioAtLeast(0.98)));
    if !sleeping.is_empty() {
        bench.add(Figure::paired(ASLEEP, "events/s", SILENT, &Pairs::of(&sleeping)));
    }
    if !beside.is_empty() {
        // The control of the first comparison stands for this one too: the same machine in the same minutes.
        let measured = Pairs { noise: control.noise, ..Pairs::of(&beside) };
        bench.add(Figure::paired(PLAIN, "events/s", "plain insert", &measured));
    }
    Ok(())
}

/// No relay has run for long: every slot holds events that a sink has not got, and the last one grows.
async fn with_every_slot_full(world: &World, bench: &mut Bench) -> Result<()> {
    let (full, empty) = (world.database().await?, world.database().await?);
    let mut side = full.connect().await?;
    sink::open(&mut side, "away", Start::Earliest).await?;
    let owed_events = format!(
        "select count(postrider.emit('order.paid', '{PAYLOAD}', key => 'customer-' || n)) from generate_series(1, {}) n",
        bench.size(100_000, 5_000)
    );
    let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
    for slot in 1..=ring::SLOTS {
        run(&mut side, &owed_events).await?;
        let turned = ring::turn(&mut side, at_once).await?;
        ensure!(matches!(turned, ring::Turn::Held(_)) == (slot == ring::SLOTS), "{turned:?}");
    }
    run(&mut side, "checkpoint").await?;
    side.close().await?;
    let emit = emitting("emit");
    let mut clients = [Clients::connect(&full).await?, Clients::connect(&empty).await?];
    for clients in &mut clients {
        clients.rate(&emit, Duration::from_secs(1)).await?;
    }
    let mut measured = Vec::new();
    for repetition in 0..bench.size(60, 5) {
        let (mut with, mut without) = (0.0, Vec::new());
        for turn in 0..3 {
            if turn == repetition % 3 {
                with = clients[0].rate(&emit, WARM_UP).await?;
            } else {
                without.push(clients[1].rate(&emit, WARM_UP).await?);
            }
        }
        measured.push((with, without[0], without[1]));
    }
    let goal = Goal::RatioAtLeast(0.95);
    bench.add(Figure::paired(FULL, "events/s", "emit into an empty ring", &Pairs::of(&measured)).goal(goal));
    Ok(())
}

/// The frightening example: a ticket that nobody disarms, so that every producer notifies whoever listens.
async fn all_notify(
    database: &Database,
    clients: &mut Clients,
    side: &mut PgConnection,
    bench: &mut Bench,
) -> Result<()> {
    const ARM: &str = "select setval('postrider.armed', greatest(pg_sequence_last_value('postrider.armed'), pg_sequence_last_value('postrider.disarmed'), 0) + 1),
                              setval('postrider.armed_until', extract(epoch from clock_timestamp())::bigint + 3600)";
    const DISARM: &str = "select setval('postrider.disarmed', pg_sequence_last_value('postrider.armed')), setval('postrider.armed_until', 1)";
    let mut listener = PgListener::connect(&database.url()).await?;
    listener.listen("postrider").await?;
    let hearing = tokio::spawn(async move { while listener.recv().await.is_ok() {} });
    let (emit, silent) = (emitting("emit"), emitting("emit_silent"));
    let mut measured = Vec::new();
    for repetition in 0..bench.size(24, 3) {
        let mut without = Vec::new();
        let mut notifying = 0.0;
        for turn in 0..3 {
            if turn == repetition % 3 {
                run(side, ARM).await?;
                notifying = clients.rate(&emit, WARM_UP).await?;
                run(side, DISARM).await?;
            } else {
                without.push(clients.rate(&silent, WARM_UP).await?);
            }
        }
        measured.push((notifying, without[0], without[1]));
    }
    hearing.abort();
    bench.add(Figure::paired(NOTIFYING, "events/s", SILENT, &Pairs::of(&measured)));
    Ok(())
}

/// `emit` as it is, without the part that looks whether a reader sleeps.
async fn make_silent_emit(connection: &mut PgConnection) -> Result<()> {
    let definition: String = sqlx::query_scalar(
        "select pg_get_functiondef('postrider.emit(text, text, text, text, text, text)'::regprocedure)",
    )
    .fetch_one(&mut *connection)
    .await?;
    let moved = "emit no longer has the part `if … armed … end if;`";
    let armed = definition.find("'postrider.armed'").context(moved)?;
    let begin = definition[..armed].rfind("if ").context(moved)?;
    let end = armed + definition[armed..].find("end if;").context(moved)? + "end if;".len();
    let silent = format!("{}{}", &definition[..begin], &definition[end..]).replacen(
        "postrider.emit(",
        "postrider.emit_silent(",
        1,
    );
    ensure!(!silent.contains("armed") && !silent.contains("ring_bell"), "{moved}: {silent}");
    run(connection, &silent).await
}

fn emitting(function: &str) -> String {
    format!(
        "select postrider.{function}('order.paid', '{PAYLOAD}', key => 'customer-' || $1::integer, tenant => 'tenant-7', entity => 'order-' || $1::integer)"
    )
}

fn inserting() -> String {
    format!(
        "insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload) \
         values (0, hashtextextended(('customer-' || $1::integer) collate \"C\", 0) & 15, gen_random_uuid(), 'order.paid', \
         'order-' || $1::integer, 'customer-' || $1::integer, 'tenant-7', '{PAYLOAD}')"
    )
}

/// Clients that stay connected: a backend that has just begun parses and plans for longer than a turn may last.
struct Clients {
    connections: Vec<PgConnection>,
}

impl Clients {
    async fn connect(database: &Database) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            connections.push(database.connect().await?);
        }
        Ok(Self { connections })
    }

    /// Commits per second of all clients together, in one turn.
    async fn rate(&mut self, statement: &str, warm_up: Duration) -> Result<f64> {
        let counted = Instant::now() + warm_up;
        let end = counted + TURN;
        let mut running = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            let statement = statement.to_owned();
            running.spawn(async move {
                let mut commits = 0_u32;
                loop {
                    let customer: i32 = rand::random_range(1..1_000_000);
                    sqlx::query(AssertSqlSafe(statement.clone()))
                        .bind(customer)
                        .execute(&mut connection)
                        .await?;
                    let now = Instant::now();
                    if now >= end {
                        return anyhow::Ok((connection, commits));
                    }
                    commits += u32::from(now >= counted);
                }
            });
        }
        let mut commits = 0;
        while let Some(done) = running.join_next().await {
            let (connection, own) = done??;
            self.connections.push(connection);
            commits += own;
        }
        Ok(f64::from(commits) / TURN.as_secs_f64())
    }
}
