//! One statement that updates every row.

use std::time::Instant;

use anyhow::Result;
use postrider_testkit::bench::{Bench, Figure, Goal, pairs};
use sqlx::Connection as _;

use crate::ways::{BARE, CHANGE, Way, Ways, run};

const LIMIT: &str = "1 bulk update, against the limit";
const LOOP: &str = "1 bulk update, against a loop over the catalog";
const NONE: &str = "1 bulk update, against no trigger";

const EMPTY: &str = "1 bulk update, a trigger that does nothing against the limit";
const INSERTING: &str = "1 bulk update, a trigger that only inserts against the limit";

/// By the server's CPU time on 15, in µs for each row: the update 4.4, with an empty trigger 5.4, the limit 12.2, with a trigger that only inserts 21.8,
/// with ours 49. `docs/performance.md` has the parts.
const ONE_BY_ONE: &str = "the limit inserts ready events by one statement, a trigger makes and inserts them one by one: see the trigger that only inserts";

pub(crate) async fn figures(ways: &Ways, bench: &mut Bench) -> Result<()> {
    let rows = ways.rows;
    let update = format!("update public.issues set {CHANGE}");
    let (columns, values) = BARE;
    let limit = format!(
        "{update}; insert into postrider.events ({columns})
         select {values}, lane, type, entity, key, tenant, payload, headers from public.ready"
    );
    let ours = async || seconds(&ways.ours, &update, rows).await;
    let per_row = |seconds: f64| seconds * 1e6 / f64::from(rows);
    let runs = bench.size(5, 1);
    if bench.wants(LIMIT) {
        let rival = async || anyhow::Ok(per_row(seconds(&ways.limit, &limit, rows).await?));
        let measured = pairs(runs, async || anyhow::Ok(per_row(ours().await?)), rival).await?;
        bench.add(
            Figure::paired(LIMIT, "µs/row", "update + bare insert", &measured)
                .goal(Goal::RatioAtMost(2.0))
                .reason(ONE_BY_ONE),
        );
    }
    for (name, floor) in [(EMPTY, &ways.empty), (INSERTING, &ways.inserting)] {
        if bench.wants(name) {
            let rival = async || anyhow::Ok(per_row(seconds(&ways.limit, &limit, rows).await?));
            let floor = async || anyhow::Ok(per_row(seconds(floor, &update, rows).await?));
            let measured = pairs(runs, floor, rival).await?;
            bench.add(Figure::paired(name, "µs/row", "update + bare insert", &measured));
        }
    }
    if bench.wants(LOOP) {
        let rate = |seconds: f64| f64::from(rows) / seconds;
        let rival = async || anyhow::Ok(rate(seconds(&ways.looping, &update, rows).await?));
        let measured = pairs(bench.size(3, 1), async || anyhow::Ok(rate(ours().await?)), rival).await?;
        bench.add(
            Figure::paired(LOOP, "rows/s", "EXECUTE per column", &measured).goal(Goal::RatioAtLeast(8.0)),
        );
    }
    if bench.wants(NONE) {
        let rival = async || anyhow::Ok(per_row(seconds(&ways.none, &update, rows).await?));
        let measured = pairs(runs, async || anyhow::Ok(per_row(ours().await?)), rival).await?;
        bench.add(Figure::paired(NONE, "µs/row", "no trigger", &measured));
    }
    Ok(())
}

/// How long the statements take, in one transaction.
async fn seconds(way: &Way, statements: &str, rows: u32) -> Result<f64> {
    let mut connection = way.fresh().await?;
    let begin = Instant::now();
    run(&mut connection, statements).await?;
    let seconds = begin.elapsed().as_secs_f64();
    way.check(&mut connection, rows).await?;
    connection.close().await?;
    Ok(seconds)
}
