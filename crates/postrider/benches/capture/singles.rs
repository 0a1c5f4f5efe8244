//! One statement per row, as applications write: many in a transaction, or each in its own.

use std::time::Instant;

use anyhow::Result;
use postrider_testkit::bench::{Bench, Figure, Goal, pairs};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::ways::{BARE, CHANGE, Way, Ways, id};

/// How the updates are committed.
#[derive(Clone, Copy)]
enum Commit {
    Together,
    Each,
}

pub(crate) async fn figures(ways: &Ways, bench: &mut Bench) -> Result<()> {
    let together = ("2 single updates in a transaction", Commit::Together, bench.size(5_000, 200));
    let each = ("3 single updates, each committed", Commit::Each, bench.size(2_000, 50));
    for (name, commit, updates) in [together, each] {
        let updates = updates.min(ways.rows);
        let runs = bench.size(5, 1);
        let update = format!("update public.issues set {CHANGE} where id = $1");
        let ours = async || micros(&ways.ours, &update, commit, updates).await;
        let limit = format!("{name}, against the limit");
        if bench.wants(&limit) {
            let measured =
                pairs(runs, ours, async || at_the_limit(&ways.limit, commit, updates).await).await?;
            let figure = Figure::paired(&limit, "µs/row", "update + bare insert", &measured);
            bench.add(figure.goal(Goal::RatioAtMost(2.0)));
        }
        for (word, rival, way) in [
            ("a loop over the catalog", "EXECUTE per column", &ways.looping),
            ("no trigger", "no trigger", &ways.none),
        ] {
            let name = format!("{name}, against {word}");
            if bench.wants(&name) {
                let measured =
                    pairs(runs, ours, async || micros(way, &update, commit, updates).await).await?;
                bench.add(Figure::paired(&name, "µs/row", rival, &measured));
            }
        }
    }
    Ok(())
}

/// What an update takes from the client's side.
async fn micros(way: &Way, update: &str, commit: Commit, updates: u32) -> Result<f64> {
    let mut connection = way.fresh().await?;
    let begin = begin(&mut connection, commit).await?;
    for number in 1..=updates {
        sqlx::query(AssertSqlSafe(update)).bind(id(number)).execute(&mut connection).await?;
    }
    let cost = end(&mut connection, commit, begin, updates).await?;
    way.check(&mut connection, updates).await?;
    connection.close().await?;
    Ok(cost)
}

/// The same with an insert of the event, made beforehand, in one statement.
async fn at_the_limit(way: &Way, commit: Commit, updates: u32) -> Result<f64> {
    let (columns, values) = BARE;
    let statement = format!(
        "with u as (update public.issues set {CHANGE} where id = $1)
         insert into postrider.events ({columns}) values ({values}, $2, $3, $4, $5, $6, $7::text::json, $8::text::json)"
    );
    let mut connection = way.fresh().await?;
    let events = sqlx::query(
        "select lane, type, entity, key, tenant, payload::text, headers::text from public.ready order by key limit $1",
    )
    .bind(i64::from(updates))
    .fetch_all(&mut connection)
    .await?;
    let begin = begin(&mut connection, commit).await?;
    for (number, event) in (1..=updates).zip(&events) {
        sqlx::query(AssertSqlSafe(statement.as_str()))
            .bind(id(number))
            .bind(event.try_get::<i16, _>(0)?)
            .bind(event.try_get::<&str, _>(1)?)
            .bind(event.try_get::<&str, _>(2)?)
            .bind(event.try_get::<&str, _>(3)?)
            .bind(event.try_get::<Option<&str>, _>(4)?)
            .bind(event.try_get::<&str, _>(5)?)
            .bind(event.try_get::<Option<&str>, _>(6)?)
            .execute(&mut connection)
            .await?;
    }
    let cost = end(&mut connection, commit, begin, updates).await?;
    way.check(&mut connection, updates).await?;
    connection.close().await?;
    Ok(cost)
}

async fn begin(connection: &mut PgConnection, commit: Commit) -> Result<Instant> {
    let begin = Instant::now();
    if matches!(commit, Commit::Together) {
        sqlx::raw_sql("begin").execute(connection).await?;
    }
    Ok(begin)
}

async fn end(connection: &mut PgConnection, commit: Commit, begin: Instant, updates: u32) -> Result<f64> {
    if matches!(commit, Commit::Together) {
        sqlx::raw_sql("commit").execute(connection).await?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(updates))
}
