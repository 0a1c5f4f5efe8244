//! What `emit` costs beside a bare insert of the same columns.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, Pairs, pairs};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::world::{BARE, SAMPLE, World, bare_insert, run};

const STATEMENT: &str = "3a emit, one statement";
const FUNCTION: &str = "3a a function with the insert alone";
const CLIENT: &str = "3b emit, one call per event";
const MANY: &str = "3c emit_many of 1,000";

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if ![STATEMENT, FUNCTION, CLIENT, MANY].iter().any(|figure| bench.wants(figure)) {
        return Ok(());
    }
    let database = world.database().await?;
    let runs = bench.size(5, 1);
    if bench.wants(STATEMENT) {
        let measured =
            in_one_statement(&database, "postrider.emit", bench.size(100_000, 5_000), runs).await?;
        bench.add(figure(STATEMENT, &measured).reason(
            "PL/pgSQL runs one INSERT per call, whose executor start and end alone cost about as much as the bulk insert's \
             whole row; emit_many is the way for many events.",
        ));
    }
    if bench.wants(FUNCTION) {
        make_only_insert(&database).await?;
        let measured = in_one_statement(&database, "only_insert", bench.size(100_000, 5_000), runs).await?;
        bench.add(Figure::paired(FUNCTION, "µs/event", "bare insert", &measured));
    }
    if bench.wants(CLIENT) {
        bench.add(figure(CLIENT, &from_a_client(&database, bench.size(5_000, 500), runs).await?));
    }
    if bench.wants(MANY) {
        bench.add(figure(MANY, &in_arrays(&database, bench.size(50, 3), runs).await?));
    }
    Ok(())
}

fn figure(name: &str, measured: &Pairs) -> Figure {
    Figure::paired(name, "µs/event", "bare insert", measured).goal(Goal::RatioAtMost(2.0))
}

/// An empty log before each run, so that all runs find the same.
async fn empty(connection: &mut PgConnection) -> Result<()> {
    run(connection, "truncate postrider.events").await?;
    run(connection, "checkpoint").await
}

fn micros(begin: Instant, events: u32) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(events)
}

/// The least that a function per event can cost: what is left of `emit` without its checks, its id and its hint.
async fn make_only_insert(database: &Database) -> Result<()> {
    let (columns, values) = BARE;
    let values = values.replace("e.", "");
    let function = format!(
        "create function only_insert(type text, payload json, key text, tenant text, entity text) returns uuid
             language plpgsql volatile as $$
         #variable_conflict use_variable
         begin
             insert into postrider.events ({columns}) values ({values});
             return null;
         end
         $$"
    );
    let mut connection = database.connect().await?;
    run(&mut connection, &function).await?;
    connection.close().await?;
    Ok(())
}

async fn in_one_statement(database: &Database, function: &str, events: u32, runs: u32) -> Result<Pairs> {
    let emit = format!(
        "select count({function}(e.type, e.payload::json, key => e.key, tenant => e.tenant, entity => e.entity))
         from (select {SAMPLE} from generate_series(1, {events}) n) e"
    );
    let bare = bare_insert(events);
    let timed = async |statement: &str| {
        let mut connection = database.connect().await?;
        empty(&mut connection).await?;
        let begin = Instant::now();
        run(&mut connection, statement).await?;
        let cost = micros(begin, events);
        connection.close().await?;
        Ok(cost)
    };
    pairs(runs, async || timed(&emit).await, async || timed(&bare).await).await
}

async fn from_a_client(database: &Database, events: u32, runs: u32) -> Result<Pairs> {
    const EMIT: &str = "select postrider.emit($1::text, $2::text::json, key => $3::text, tenant => $4::text, entity => $5::text)";
    let (columns, values) = BARE;
    let bare = format!(
        "insert into postrider.events ({columns}) select {values}
         from (select $1::text as type, $2::text::json as payload, $3::text as key, $4::text as tenant, $5::text as entity) e"
    );
    let timed = async |statement: &str| {
        let mut connection = database.connect().await?;
        empty(&mut connection).await?;
        let payload = payload(7);
        let begin = Instant::now();
        let mut transaction = connection.begin().await?;
        for event in 0..events {
            sqlx::query(AssertSqlSafe(statement))
                .bind("order.paid")
                .bind(&payload)
                .bind(format!("customer-{}", event % 10_000))
                .bind(format!("tenant-{}", event % 100))
                .bind(format!("order-{event}"))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        let cost = micros(begin, events);
        connection.close().await?;
        Ok(cost)
    };
    pairs(runs, async || timed(EMIT).await, async || timed(&bare).await).await
}

async fn in_arrays(database: &Database, calls: u32, runs: u32) -> Result<Pairs> {
    const EVENTS: u32 = 1_000;
    const EMIT: &str = "select count(*) from postrider.emit_many($1::text::json)";
    let (columns, values) = BARE;
    let bare = format!(
        "insert into postrider.events ({columns}) select {values}
         from (select a.event ->> 'type' as type, a.event ->> 'entity' as entity, a.event ->> 'key' as key,
                      a.event ->> 'tenant' as tenant, a.event -> 'payload' as payload
               from json_array_elements($1::text::json) as a (event)) e"
    );
    let mut array = String::from("[");
    for event in 0..EVENTS {
        let comma = if event > 0 { "," } else { "" };
        write!(
            array,
            r#"{comma}{{"type":"order.paid","key":"customer-{event}","tenant":"tenant-{}","entity":"order-{event}","payload":{}}}"#,
            event % 100,
            payload(event)
        )?;
    }
    array.push(']');
    let timed = async |statement: &str| {
        let mut connection = database.connect().await?;
        empty(&mut connection).await?;
        let begin = Instant::now();
        let mut transaction = connection.begin().await?;
        for _ in 0..calls {
            sqlx::query(AssertSqlSafe(statement)).bind(&array).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        let cost = micros(begin, calls * EVENTS);
        connection.close().await?;
        Ok(cost)
    };
    pairs(runs, async || timed(EMIT).await, async || timed(&bare).await).await
}

/// What the SQL sample has as its payload.
fn payload(event: u32) -> String {
    let note = "x".repeat(120);
    format!(
        r#"{{"order":{event},"customer":"customer-{event}","total":{},"currency":"EUR","note":"{note}"}}"#,
        event % 9973
    )
}
