//! Many clients that commit one event each: what the wake-up hint costs them.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, Pairs};
use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection};

use crate::world::{Running, World, run};

const HINT: &str = "4 emit with 32 clients, reader awake";
const PLAIN: &str = "4 emit with 32 clients, beside an insert";
const NOTIFYING: &str = "4 every commit notifies (never so)";

const PAYLOAD: &str = r#"{"order":7,"customer":"customer-7","total":4711,"currency":"EUR","note":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if ![HINT, PLAIN, NOTIFYING].iter().any(|figure| bench.wants(figure)) {
        return Ok(());
    }
    let database = world.database().await?;
    let mut connection = database.connect().await?;
    make_silent_emit(&mut connection).await?;
    let seconds = bench.size(6, 1);
    let (emit, silent, plain) = (emitting("emit"), emitting("emit_silent"), inserting());
    // Whoever comes first would pay for an empty cache.
    let mut reader = Running::start(&database, "busy").await?;
    inserts(&database, &silent, 1).await?;
    let (mut hint, mut beside, mut notifying) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(3, 1) {
        reader.drain();
        let awake = inserts(&database, &emit, seconds).await?;
        ensure!(reader.drain() > 0, "the reader read nothing");
        let without = inserts(&database, &silent, seconds).await?;
        let again = inserts(&database, &silent, seconds).await?;
        hint.push((awake, without, again));
        if bench.wants(PLAIN) {
            let plain = inserts(&database, &plain, seconds).await?;
            beside.push((awake, plain, plain));
        }
        if bench.wants(NOTIFYING) {
            reader.stop().await?;
            notifying.push((all_notify(&database, &mut connection, &emit, seconds).await?, without, again));
            reader = Running::start(&database, "busy").await?;
        }
    }
    reader.stop().await?;
    let control = Pairs::of(&hint);
    let rival = "emit without the hint";
    bench.add(Figure::paired(HINT, "events/s", rival, &control).goal(Goal::RatioAtLeast(0.98)));
    if !beside.is_empty() {
        // The control of the first comparison stands for this one too: the same machine in the same minutes.
        let measured = Pairs { noise: control.noise, ..Pairs::of(&beside) };
        bench.add(Figure::paired(PLAIN, "events/s", "plain insert", &measured));
    }
    if !notifying.is_empty() {
        bench.add(Figure::paired(NOTIFYING, "events/s", rival, &Pairs::of(&notifying)));
    }
    connection.close().await?;
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
        "\\set n random(1, 1000000)\nselect postrider.{function}('order.paid', '{PAYLOAD}', key => 'customer-' || :n, tenant => 'tenant-7', entity => 'order-' || :n);\n"
    )
}

fn inserting() -> String {
    format!(
        "\\set n random(1, 1000000)\ninsert into postrider.events (slot, lane, id, type, entity, key, tenant, payload) \
         values (0, hashtextextended(('customer-' || :n) collate \"C\", 0) & 15, gen_random_uuid(), 'order.paid', \
         'order-' || :n, 'customer-' || :n, 'tenant-7', '{PAYLOAD}');\n"
    )
}

/// Commits per second of 32 clients.
async fn inserts(database: &Database, script: &str, seconds: u32) -> Result<f64> {
    let mut command = database.server().run_as("pgbench")?;
    command
        .args(["-n", "-M", "prepared", "-c", "32", "-j", "2", "-f", "-", "-h", "127.0.0.1", "-U", "postgres"])
        .args(["-T", &seconds.to_string(), "-p", &database.server().port().to_string(), database.name()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let script = script.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn()?;
        child.stdin.take().context("no stdin")?.write_all(script.as_bytes())?;
        anyhow::Ok(child.wait_with_output()?)
    })
    .await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "pgbench failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    tps.with_context(|| format!("pgbench did not say its tps: {text}"))
}

/// The frightening example: a ticket that nobody disarms, so that every producer notifies whoever listens.
async fn all_notify(
    database: &Database,
    connection: &mut PgConnection,
    script: &str,
    seconds: u32,
) -> Result<f64> {
    let mut listener = PgListener::connect(&database.url()).await?;
    listener.listen("postrider").await?;
    let hearing = tokio::spawn(async move { while listener.recv().await.is_ok() {} });
    run(
        connection,
        "select setval('postrider.armed', greatest(pg_sequence_last_value('postrider.armed'), pg_sequence_last_value('postrider.disarmed'), 0) + 1),
                setval('postrider.armed_until', extract(epoch from clock_timestamp())::bigint + 3600)",
    )
    .await?;
    let rate = inserts(database, script, seconds).await;
    run(
        connection,
        "select setval('postrider.disarmed', pg_sequence_last_value('postrider.armed')), setval('postrider.armed_until', 1)",
    )
    .await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    hearing.abort();
    rate
}
