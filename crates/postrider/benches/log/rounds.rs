//! Rounds, one by one: with an xmin held elsewhere, and with nothing to find.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use postrider::log::cursor::Cursor;
use postrider::log::progress::{self, Tenure};
use postrider::log::{Start, lease, round, session, sink};
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, median};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::world::{World, fill, options, run};

const HELD: &str = "7 round with an xmin held";
const HELD_SETTLING: &str = "7 settling with an xmin held";
const IDLE: &str = "9 idle round over 16 lanes";
const LEASE: Duration = Duration::from_mins(10);

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if bench.wants(HELD) || bench.wants(HELD_SETTLING) {
        let database = world.database().await?;
        let rounds = usize::try_from(bench.size(20_000, 1_000))?;
        let (reading, settling) = with_xmin_held(&database, rounds).await?;
        let add = |name: &str, times: &[f64], of: usize| {
            let (first, last) = (&times[..of], &times[times.len() - of..]);
            let rival = format!("the first {of}");
            Figure::compared(name, "ms", median(last), &rival, median(first)).runs(times.len())
        };
        bench.add(add(HELD, &reading, rounds / 20).goal(Goal::RatioAtMost(1.5)));
        bench.add(add(HELD_SETTLING, &settling, settling.len() / 20));
    }
    if bench.wants(IDLE) {
        let database = world.database().await?;
        fill(&database, bench.size(100_000, 5_000)).await?;
        let mut hand = Hand::open(&database).await?;
        let mut times = Vec::new();
        for _ in 0..bench.size(3_000, 300) {
            times.push(hand.look().await?.0);
        }
        bench.add(Figure::measured(IDLE, "ms", median(&times)).runs(times.len()));
    }
    Ok(())
}

/// Milliseconds of each round and of each settling while a transaction elsewhere keeps every dead row alive.
async fn with_xmin_held(database: &Database, rounds: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut hand = Hand::open(database).await?;
    let mut holder = database.connect().await?;
    run(&mut holder, "begin isolation level repeatable read; select count(*) from postrider.events").await?;
    let mut producer = database.connect().await?;
    let (mut reading, mut settling) = (Vec::new(), Vec::new());
    for number in 0..rounds {
        if number % 10 == 0 {
            sqlx::query("select postrider.emit('order.paid', '{\"order\":7}', key => 'customer-7')")
                .execute(&mut producer)
                .await?;
        }
        let (time, found) = hand.look().await?;
        reading.push(time);
        if number % 10 == 0 {
            anyhow::ensure!(found == 1, "{found} events were read instead of one");
            settling.push(hand.settle().await?);
        }
        if number % 100 == 0 {
            lease::heartbeat(&mut hand.connection, hand.reader, "by hand", hand.tenure.sink, LEASE).await?;
        }
    }
    run(&mut holder, "rollback").await?;
    holder.close().await?;
    Ok((reading, settling))
}

/// A reader driven by hand.
struct Hand {
    connection: PgConnection,
    reader: Uuid,
    tenure: Tenure,
    cursors: BTreeMap<i16, Cursor>,
    lanes: usize,
}

impl Hand {
    async fn open(database: &Database) -> Result<Self> {
        let mut connection = session::connect(&options(database)?).await?;
        let tenure = sink::open(&mut connection, "by hand", Start::Now).await?;
        let reader = Uuid::now_v7();
        lease::heartbeat(&mut connection, reader, "by hand", tenure.sink, LEASE).await?;
        let (tenure, cursors) =
            lease::balance(&mut connection, reader, &tenure, &[], &[]).await?.0.context("no lane is free")?;
        let lanes = cursors.len();
        Ok(Self { connection, reader, tenure, cursors, lanes })
    }

    /// Reads a round and moves past it: how long it took, and how many events it found.
    async fn look(&mut self) -> Result<(f64, usize)> {
        let begin = Instant::now();
        let round = round::read(&mut self.connection, round::READ, self.lanes, &self.cursors, 1000).await?;
        let time = begin.elapsed().as_secs_f64() * 1e3;
        let found = round.len();
        self.cursors = round.pages.into_iter().map(|(lane, page)| (lane, page.end)).collect();
        Ok((time, found))
    }

    async fn settle(&mut self) -> Result<f64> {
        let begin = Instant::now();
        let settled = progress::append(&mut self.connection, &mut self.tenure, &self.cursors).await?;
        let time = begin.elapsed().as_secs_f64() * 1e3;
        for cursor in self.cursors.values_mut() {
            cursor.bound.get_or_insert(settled.bound);
        }
        Ok(time)
    }
}
