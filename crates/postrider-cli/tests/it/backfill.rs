//! `postrider backfill`: killed at any page, with writers on the same rows, and behind a sink that is slow.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use postrider_testkit::{Database, Seed};
use rand::RngExt;
use sqlx::PgConnection;

use crate::capture::File;
use crate::support::End;
use crate::world::{ask, create_sink, installed, open_reader, run};

const ROWS: u32 = 2000;
const KILLS: u32 = 5;

async fn filled() -> (Database, File) {
    let database = installed().await;
    run(
        &database,
        format!(
            "create table public.things (id int primary key, n int not null);
             insert into things select i, 0 from generate_series(1, {ROWS}) i"
        ),
    )
    .await;
    let file = File::new(&database, "tables:\n  public.things: { entity: thing }\n");
    file.run(&database, &["apply"]).expect(0);
    (database, file)
}

/// Changes rows, deletes some and makes others, until it is told to stop.
async fn write(database: &Database, stop: Arc<AtomicBool>, seed: Seed) {
    let mut connection = database.connect().await.unwrap();
    let mut rng = seed.rng();
    let rows = i32::try_from(ROWS).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let statement = match rng.random_range(0..10) {
            0 => "delete from things where id = $1",
            1 => "insert into things values ($1, -1) on conflict (id) do update set n = things.n - 1",
            _ => "update things set n = n + 1 where id between $1 and $1 + 3",
        };
        sqlx::query(statement).bind(rng.random_range(1..rows + 500)).execute(&mut connection).await.unwrap();
        // Enough to meet the pages everywhere, and not so much that nothing else gets its turn.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn emitted(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select coalesce(sum(emitted), 0)::bigint from postrider.backfills")
        .fetch_one(connection)
        .await
        .unwrap()
}

/// The rows as somebody knows them who has only heard the events.
const DIFFERENCES: &str = "select count(*) from (
        select distinct on (key) key, type, payload -> 'data' ->> 'n' as n from postrider.events order by key, seq desc) heard
    full join things t on t.id::text = heard.key and heard.type <> 'thing.deleted'
    where (t.id is null and heard.type <> 'thing.deleted') or heard.key is null or (t.id is not null and t.n::text is distinct from heard.n)";

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_of_snapshots_and_changes_equals_the_table_through_kills() {
    let (database, file) = filled().await;
    let seed = Seed::from_env_or_random("backfill");
    let mut rng = seed.for_task(2).rng();
    let stop = Arc::new(AtomicBool::new(false));
    let (database, written) = (Arc::new(database), Arc::clone(&stop));
    let writer = tokio::spawn({
        let database = Arc::clone(&database);
        async move { write(&database, written, seed.for_task(1)).await }
    });
    // So many pages that it is not done before whoever is to kill it gets a turn on a busy machine.
    let words = ["backfill", "public.things", "--page", "2"];
    let mut watcher = database.connect().await.unwrap();
    let (mut killed, mut is_done) = (0, false);
    while killed < KILLS && !is_done {
        let mut child =
            file.command(&database, &words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // Not before it has begun: when the place moves.
        let before = emitted(&mut watcher).await;
        while child.try_wait().unwrap().is_none() && emitted(&mut watcher).await == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..15_000))).await;
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert!(!ended.success() || killed > 0, "it was done before the first kill");
        killed += 1;
        is_done = ended.success();
    }
    if !is_done {
        file.run(&database, &words).expect(0);
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    assert_eq!(ask(&database, DIFFERENCES).await, "0");
    let twice = "select count(*) from (select key from postrider.events where type = 'thing.snapshot' group by key having count(*) > 1) t";
    assert_eq!(ask(&database, twice).await, "0", "no page is repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_a_sink_that_is_behind() {
    let (database, file) = filled().await;
    create_sink(&database, "slow").await;
    let mut child = file
        .command(&database, &["backfill", "public.things", "--page", "200", "--max-backlog", "500"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (to, lines) = mpsc::channel();
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
    // Not before it has asked about the sink, which might have caught up by then.
    let mut said: Vec<String> = Vec::new();
    while !said.last().is_some_and(|line| line.contains("waiting for the sink")) {
        let line = lines.recv_timeout(Duration::from_mins(2));
        said.push(line.unwrap_or_else(|_| panic!("it waits for nobody: {said:?}")));
    }
    assert_eq!(emitted(&mut database.connect().await.unwrap()).await, 600);
    let mut reader = open_reader(&database, "slow").await;
    let mut seen = 0;
    while seen < ROWS as usize {
        let batch = tokio::time::timeout(Duration::from_mins(2), reader.next()).await.unwrap().unwrap();
        seen += batch.len();
        reader.settle(&batch).await.unwrap();
    }
    assert!(child.wait().unwrap().success());
    said.extend(lines);
    let waits = "600 events made; waiting for the sink slow, which owes 600 events";
    assert!(said.iter().any(|line| line.contains(waits)), "{said:?}");
    let done = "public.things: 2,000 events for the rows that were there";
    assert!(said.last().is_some_and(|line| line.ends_with(done)), "{said:?}");
}

#[tokio::test]
async fn a_table_that_is_not_declared_or_not_captured_is_refused() {
    let (database, file) = filled().await;
    let end = file.run(&database, &["backfill", "public.other"]).expect(78);
    assert_eq!(end.stderr, "error: the table public.other is not declared in the file\n");
    run(&database, "drop trigger \"00_postrider\" on things").await;
    let end = file.run(&database, &["backfill", "public.things"]).expect(78);
    assert!(end.stderr.contains("run `postrider apply` first"), "{}", end.stderr);
}

/// Whoever is let to install is let to do this too, and to see how far the sinks are behind.
#[tokio::test]
async fn an_owner_who_is_let_to_install_waits_for_sinks_too() {
    let (database, file) = filled().await;
    create_sink(&database, "slow").await;
    let role = format!("{}_own", database.name());
    run(
        &database,
        format!(
            "create role \"{role}\" login; select postrider.allow_capture('{role}'); alter table things owner to \"{role}\""
        ),
    )
    .await;
    file.run(&database, &["apply"]).expect(0);
    let mut command = file.command(&database, &["backfill", "public.things"]);
    command.env("DATABASE_URL", database.url_as(&role));
    let end = End::of(&mut command).expect(0);
    assert!(
        end.stderr.ends_with("public.things: 2,000 events for the rows that were there\n"),
        "{}",
        end.stderr
    );
    run(&database, format!("drop owned by \"{role}\" cascade; drop role \"{role}\"")).await;
}
