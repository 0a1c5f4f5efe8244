//! Reading the whole log: against COPY, against a poller that claims and marks, and what it leaves behind.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, copy_log, pairs};
use sqlx::{Connection, Row};

use crate::world::{World, count, fill, read_all, run};

const AGAINST_COPY: &str = "1 reader to null";
const AGAINST_POLLER: &str = "2 reader against a poller";
const DEAD: &str = "8 dead rows after reading";

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if ![AGAINST_COPY, AGAINST_POLLER, DEAD].iter().any(|figure| bench.wants(figure)) {
        return Ok(());
    }
    let events = bench.size(1_000_000, 50_000);
    let database = world.database().await?;
    fill(&database, events).await?;
    let runs = bench.size(3, 1);

    let mut sinks = 0;
    let mut reader = async || {
        sinks += 1;
        read_all(&database, &format!("null {sinks}"), events).await
    };
    if bench.wants(AGAINST_COPY) || bench.wants(DEAD) {
        let measured = pairs(runs, &mut reader, async || copy_log(&database, events).await).await?;
        bench.add(
            Figure::paired(AGAINST_COPY, "events/s", "COPY in order", &measured)
                .goal(Goal::RatioAtLeast(0.8)),
        );
        bench.add(Figure::measured(DEAD, "rows", dead_rows(&database).await?).goal(Goal::AtMost(0.0)));
    }
    // The poller slows down with its backlog, so the ratio means nothing without it: both are shown, the small one is its best case.
    let backlogs = [
        ("2 reader against a poller, 20,000 waiting", 20_000, 20_000),
        // A part of them: all would take minutes, and the last ones are no longer behind a backlog.
        ("2 reader against a poller, 200,000 waiting", 200_000, 40_000),
    ];
    for (figure, rows, polled) in backlogs {
        if bench.wants(figure) {
            let (rows, polled) = (bench.size(rows, 2_000), bench.size(polled, 2_000));
            let measured = pairs(runs, &mut reader, async || poll(world, rows, polled).await).await?;
            bench.add(
                Figure::paired(figure, "events/s", "SKIP LOCKED, claim and mark 250", &measured)
                    .goal(Goal::RatioAtLeast(20.0))
                    .reason("a poller is at its best with few rows waiting: 20 times that is about what COPY itself delivers"),
            );
        }
    }
    Ok(())
}

/// Rows per second of the usual poller, for the first `polled` of so many: claim 250, publish (nothing here), mark them.
async fn poll(world: &World, rows: u32, polled: u32) -> Result<f64> {
    let database = world.database().await?;
    let mut connection = database.connect().await?;
    run(
        &mut connection,
        "create table outbox (
             id bigserial primary key, event_id uuid not null unique, event_type varchar not null, entity_id uuid not null,
             payload jsonb not null, workspace_id uuid not null, initiator_type varchar not null,
             created_at timestamptz not null, claimed_at timestamptz, processed_at timestamptz);
         create index outbox_unclaimed_unprocessed on outbox (claimed_at, processed_at, id)
             where claimed_at is null and processed_at is null;
         create index outbox_processed_idx on outbox (processed_at) where processed_at is not null",
    )
    .await?;
    let sample = crate::world::SAMPLE;
    let insert = format!(
        "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at)
         select gen_random_uuid(), e.type, gen_random_uuid(), e.payload::jsonb, gen_random_uuid(), 'USER', now()
         from (select {sample} from generate_series(1, {rows}) n) e"
    );
    run(&mut connection, &insert).await?;
    run(&mut connection, "vacuum analyze outbox").await?;
    run(&mut connection, "checkpoint").await?;

    let begin = Instant::now();
    let mut found = 0;
    while found < usize::try_from(polled)? {
        let claimed = sqlx::query(
            "update outbox set claimed_at = now()
             where id in (select id from outbox where processed_at is null and claimed_at is null
                          order by id limit 250 for update skip locked)
             returning id, event_id, event_type, entity_id, payload, processed_at, created_at, claimed_at,
                       workspace_id, initiator_type",
        )
        .fetch_all(&mut connection)
        .await?;
        ensure!(!claimed.is_empty(), "{found} rows were claimed, {rows} are there");
        found += claimed.len();
        let ids = claimed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        sqlx::query("update outbox set processed_at = now() where id = any ($1)")
            .bind(ids)
            .execute(&mut connection)
            .await?;
    }
    let rate = count(found)? / begin.elapsed().as_secs_f64();
    connection.close().await?;
    Ok(rate)
}

/// What reading left in the tables of the log: rows updated, deleted or dead.
async fn dead_rows(database: &Database) -> Result<f64> {
    let mut connection = database.connect().await?;
    // A backend reports when it is idle or ends; the readers have ended a moment ago.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rows: i64 = sqlx::query_scalar(
        "select coalesce(sum(n_dead_tup + n_tup_upd + n_tup_del), -1)::bigint
         from pg_stat_user_tables where schemaname = 'postrider' and relname like 'events\\__'",
    )
    .fetch_one(&mut connection)
    .await?;
    ensure!(rows >= 0, "the statistics of the log's tables were not found");
    connection.close().await?;
    Ok(f64::from(u32::try_from(rows)?))
}
