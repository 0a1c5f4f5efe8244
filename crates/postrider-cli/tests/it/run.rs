//! `postrider run` as the one who deploys it sees it.

mod attention;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider_testkit::{Database, Process, Signal};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use crate::support::{End, empty_database, postrider_on};

const PATIENCE: Duration = Duration::from_mins(2);

/// A database with the schema, and a folder of its own.
struct World {
    database: Database,
    folder: PathBuf,
}

impl World {
    async fn new() -> Self {
        let database = empty_database().await;
        End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
        let folder =
            std::env::temp_dir().join(format!("postrider-run-{}-{}", std::process::id(), database.name()));
        fs::create_dir_all(&folder).unwrap();
        Self { database, folder }
    }

    async fn connect(&self) -> PgConnection {
        self.database.connect().await.unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn configure(&self, text: &str) -> String {
        let path = self.path("postrider.yaml");
        fs::write(&path, text).unwrap();
        path
    }

    fn postrider(&self, words: &[&str]) -> Command {
        let mut command = postrider_on(&self.database.url(), words);
        // Where no postrider.yaml is.
        command.current_dir("/");
        command
    }

    fn run(&self, words: &[&str]) -> Relay {
        let log = self.path("log");
        let words: Vec<&str> = ["run", "--listen", "off"].into_iter().chain(words.iter().copied()).collect();
        let child = self
            .postrider(&words)
            .stdout(Stdio::null())
            .stderr(fs::OpenOptions::new().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        Relay { child, log: log.into() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Relay {
    child: Child,
    log: PathBuf,
}

impl Relay {
    fn signal(&self, signal: Signal) {
        Process::find(i32::try_from(self.child.id()).unwrap()).unwrap().signal(signal).unwrap();
    }

    /// Waits for its end.
    fn end(mut self) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells it to stop until it has ended. A signal just behind another is the same wish.
    fn insist(&mut self) {
        let begin = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(300));
            if self.child.try_wait().unwrap().is_none() {
                self.signal(Signal::TERM);
            }
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn until_said(&self, wanted: &str) {
        until(&format!("{wanted:?} in the log"), || self.said().contains(wanted));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The ids of the whole lines of a file.
fn ids(path: impl AsRef<Path>) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    whole.lines().map(id).collect()
}

async fn emit(connection: &mut PgConnection, count: i32) {
    sqlx::query("select count(postrider.emit('test', json_build_object('n', n), key => (n % 50)::text)) from generate_series(1, $1) n")
        .bind(count)
        .execute(connection)
        .await
        .unwrap();
}

/// How many relays hold lanes or stand by.
async fn readers(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.readers").fetch_one(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_gets_every_event_once_over_restarts() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    let file = world.path("events.ndjson");
    let place = format!("file:{file}");
    emit(&mut writer, 1000).await;
    let mut expected = 1000;
    for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
        let relay = world.run(&["--to", &place, "--start", "earliest"]);
        let load = tokio::spawn({
            let mut writer = world.connect().await;
            async move {
                for _ in 0..20 {
                    emit(&mut writer, 100).await;
                }
            }
        });
        expected += 2000;
        until("events flow", || ids(&file).len() > expected - 2000);
        relay.signal(signal);
        assert_eq!(relay.end(), 0);
        load.await.unwrap();
        assert_eq!(readers(&mut writer).await, 0, "it said goodbye");
    }
    End::of(&mut world.postrider(&["run", "--once", "--to", &place])).expect(0);
    let ids = ids(&file);
    assert_eq!(ids.len(), expected);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), expected, "no line twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn once_delivers_what_is_there_and_ends() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    let file = world.path("events.ndjson");
    let place = format!("file:{file}");
    emit(&mut writer, 500).await;
    let once = ["run", "--once", "--to", &place, "--start", "earliest"];
    End::of(&mut world.postrider(&once)).expect(0);
    assert_eq!(ids(&file).len(), 500);
    End::of(&mut world.postrider(&once)).expect(0);
    assert_eq!(ids(&file).len(), 500, "nothing twice");

    // What was written before and is committed late is owed too.
    let mut late = world.connect().await;
    let mut transaction = late.begin().await.unwrap();
    emit(&mut transaction, 3000).await;
    emit(&mut writer, 1).await;
    End::of(&mut world.postrider(&once)).expect(0);
    assert_eq!(ids(&file).len(), 501);
    transaction.commit().await.unwrap();
    End::of(&mut world.postrider(&once)).expect(0);
    assert_eq!(ids(&file).len(), 3501);

    // Under a load that does not end it still ends, also when another relay does the work.
    let load = tokio::spawn({
        let mut writer = world.connect().await;
        async move {
            loop {
                emit(&mut writer, 10).await;
            }
        }
    });
    End::of(&mut world.postrider(&once)).expect(0);
    let relay = world.run(&["--to", &place, "--start", "earliest"]);
    let before = ids(&file).len();
    until("it carries", || ids(&file).len() > before);
    End::of(&mut world.postrider(&once)).expect(0);
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);
    load.abort();
    writer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn once_gives_up_on_a_sink_that_stays_unavailable() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    emit(&mut writer, 1).await;
    let config =
        world.configure("sinks:\n  audit: { file: { path: /proc/nobody/events }, start: earliest }\n");
    let end = End::of(&mut world.postrider(&["run", "--once", "--patience", "1s", "--config", &config]));
    assert_eq!(end.code, Some(69), "{}", end.stderr);
    assert!(end.stderr.contains("/proc/nobody"), "{}", end.stderr);
    let said = end.stderr.lines().rfind(|line| line.starts_with("error")).unwrap_or_default();
    assert_eq!(said.matches("is not there").count(), 1, "once is enough: {}", end.stderr);

    // One that is there, and cannot be written.
    let place = format!("file:{}", world.folder.display());
    let end = End::of(&mut world.postrider(&[
        "run",
        "--once",
        "--patience",
        "1s",
        "--to",
        &place,
        "--start",
        "earliest",
    ]));
    assert_eq!(end.code, Some(69), "{}", end.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn once_says_that_the_database_is_away() {
    let begun = Instant::now();
    let words = ["run", "--once", "--to", "null", "--patience", "1s"];
    let end = End::of(&mut postrider_on("postgres://127.0.0.1:1/none", &words)).expect(69);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it may come back");
    assert!(end.stderr.contains("127.0.0.1"), "{}", end.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_schema_it_knows_it_ends_with_a_remedy() {
    let database = empty_database().await;
    let end = End::of(&mut postrider_on(&database.url(), &["run", "--to", "null", "--listen", "off"]));
    assert_ne!(end.code, Some(0));
    assert!(end.stderr.contains("postrider init"), "{}", end.stderr);

    let world = World::new().await;
    let mut connection = world.connect().await;
    sqlx::raw_sql("create or replace function postrider.schema_version() returns integer language sql immutable as 'select 999'")
        .execute(&mut connection)
        .await
        .unwrap();
    let end = End::of(&mut world.postrider(&["run", "--to", "null", "--listen", "off"]));
    assert_ne!(end.code, Some(0));
    assert!(end.stderr.contains("newer postrider"), "{}", end.stderr);
}

/// A sink is added and another taken out; what cannot be taken as a whole is not taken at all.
#[tokio::test(flavor = "multi_thread")]
async fn fault_118_a_reload_is_taken_whole_or_not_at_all() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    let (one, two) = (world.path("one.ndjson"), world.path("two.ndjson"));
    let config = world.configure(&format!("sinks:\n  one: {{ file: {{ path: {one} }}, start: earliest }}\n"));
    let relay = world.run(&["--config", &config]);
    emit(&mut writer, 10).await;
    until("ten lines", || ids(&one).len() == 10);

    world.configure(&format!(
        "sinks:\n  one: {{ file: {{ path: {one} }}, start: earliest }}\n  two: {{ file: {{ path: {two} }}, strat: earliest }}\n"
    ));
    relay.signal(Signal::HUP);
    relay.until_said("the old one stays in effect");
    relay.until_said("start");
    // A file of which nothing is there yet, and a database without the log.
    world.configure("");
    relay.signal(Signal::HUP);
    relay.until_said("there is no sink");
    let url = world.database.url();
    let elsewhere = format!("{}/postgres", url.rsplit_once('/').unwrap().0);
    world.configure(&format!("database: {elsewhere}\nsinks:\n  one: {{ null: {{}} }}\n"));
    relay.signal(Signal::HUP);
    relay.until_said("has no postrider schema");
    // What `config check` finds, a reload finds too.
    let nowhere = world.path("nowhere/two.ndjson");
    world.configure(&format!("sinks:\n  two: {{ file: {{ path: {nowhere} }} }}\n"));
    relay.signal(Signal::HUP);
    relay.until_said("nowhere does not exist");
    assert!(!relay.said().contains("the new configuration is in effect"), "{}", relay.said());
    emit(&mut writer, 10).await;
    until("twenty lines", || ids(&one).len() == 20);
    assert!(!Path::new(&two).exists());

    world.configure(&format!("sinks:\n  two: {{ file: {{ path: {two} }}, start: earliest }}\n"));
    relay.signal(Signal::HUP);
    relay.until_said("the new configuration is in effect");
    until("all of it in the new sink", || ids(&two).len() == 20);
    emit(&mut writer, 10).await;
    until("thirty lines", || ids(&two).len() == 30);
    assert_eq!(ids(&one).len(), 20, "it was taken out");
    let status = End::of(&mut world.postrider(&["status", "--json", "--config", &config]));
    assert!(status.stdout.contains("orphan"), "{}", status.stdout);
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);
}

/// Standard output that nobody reads: draining ends with its deadline, and a second signal ends it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_hangs_does_not_hold_up_the_end() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    // More than a pipe holds.
    emit(&mut writer, 5000).await;
    let usual = Duration::from_secs(10);
    for (drain, second) in [("300ms", false), ("1h", true)] {
        let log = fs::File::create(world.path("log")).unwrap();
        let mut child = world
            .postrider(&["run", "--listen", "off", "--to", "stdout", "--start", "earliest", "--drain", drain])
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let pipe = child.stdout.take().unwrap();
        let mut relay = Relay { child, log: world.path("log").into() };
        until("the pipe is full", || rustix::io::ioctl_fionread(&pipe).unwrap() > 60_000);
        let begin = Instant::now();
        relay.signal(Signal::TERM);
        if second {
            relay.until_said("stopping: what was sent");
            relay.insist();
        }
        let code = relay.end();
        assert_eq!(code == 0, !second, "{code}");
        assert!(begin.elapsed() < usual, "not when it was told to: {:?}", begin.elapsed());
        assert_eq!(readers(&mut writer).await, 0, "it handed its lanes back");
    }
}

/// Each is asked whether it is done in a rhythm of its own.
#[tokio::test(flavor = "multi_thread")]
async fn once_ends_with_any_number_of_sinks() {
    let world = World::new().await;
    emit(&mut world.connect().await, 10).await;
    let sink = |n: i32| format!("  sink{n}:\n    null: {{}}\n    start: earliest\n");
    let config = world.configure(&format!("sinks:\n{}", (0..6).map(sink).collect::<String>()));
    let mut relay = world.run(&["--once", "--config", &config]);
    until("its end", || relay.child.try_wait().unwrap().is_some());
    assert_eq!(relay.end(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_says_what_takes_a_restart() {
    let world = World::new().await;
    let config = |listen: &str| format!("http:\n  listen: {listen}\nsinks:\n  a:\n    null: {{}}\n");
    let path = world.configure(&config("127.0.0.1:0"));
    let log = world.path("log");
    let child = world
        .postrider(&["run", "--config", &path])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let relay = Relay { child, log: log.into() };
    relay.until_said("metrics and health are served");
    relay.signal(Signal::HUP);
    relay.until_said("the new configuration is in effect");
    assert!(!relay.said().contains("after a restart"), "nothing has changed: {}", relay.said());
    world.configure(&config("127.0.0.2:0"));
    relay.signal(Signal::HUP);
    relay.until_said("takes effect after a restart");
    assert!(relay.said().contains("http.listen"), "{}", relay.said());
    assert!(!relay.said().contains("for health and metrics"), "{}", relay.said());
    // A password that nobody asks for, and nobody sees.
    let url = world.database.url().replace("postgres@", "postgres:c4n4ry@");
    world.configure(&format!("database: {url}\n{}", config("127.0.0.1:0")));
    relay.signal(Signal::HUP);
    relay.until_said("database, for health and metrics");
    assert!(!relay.said().contains("c4n4ry"), "{}", relay.said());
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);
}

/// Starting anew would not help: it goes on, one event at a time, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn events_too_large_for_the_memory_limit_are_delivered_one_by_one_and_named() {
    const ROUND: usize = 12;
    let world = World::new().await;
    let mut writer = world.connect().await;
    let file = world.path("events.ndjson");
    let config = world.configure(&format!(
        "relay: {{ memory_limit: 90MB }}\nsinks:\n  a: {{ file: {{ path: {file} }}, start: earliest }}\n"
    ));
    let relay = world.run(&["--config", &config]);
    let mut events = 0;
    // Buffers shrink step by step, and grow while nothing large is on its way: it may take more than a round until one stands alone.
    while !relay.said().contains("Set relay.memory_limit to") {
        events += ROUND;
        assert!(events <= 10 * ROUND, "{}", relay.said());
        sqlx::query(
            "select count(postrider.emit('test', json_build_object('fill', repeat('x', 20000000)), key => n::text))
             from generate_series(1, $1) n",
        )
        .bind(i32::try_from(ROUND).unwrap())
        .execute(&mut writer)
        .await
        .unwrap();
        until("all of them, or an end", || {
            relay.said().contains("to be started anew")
                || fs::metadata(&file).is_ok_and(|file| file.len() > events as u64 * 20_000_000)
        });
        assert!(!relay.said().contains("to be started anew"), "{}", relay.said());
    }
    let said = relay.said();
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0, "{said}");
    let ids = ids(&file);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), events);
    assert_eq!(ids.len(), events, "none twice");
    let named = said.lines().filter(|line| line.contains("Set relay.memory_limit to")).count();
    assert!((1..=events).contains(&named), "{said}");
    assert!(ids.iter().any(|id| said.contains(id.as_str())), "{said}");
}

/// As `timeout` and shells do: to the process, and to its group.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_comes_twice_is_one_wish() {
    let world = World::new().await;
    let mut writer = world.connect().await;
    let file = world.path("events.ndjson");
    let place = format!("file:{file}");
    for round in 1..=5 {
        let relay = world.run(&["--to", &place, "--start", "earliest"]);
        emit(&mut writer, 100).await;
        until("all of it", || ids(&file).len() == round * 100);
        relay.signal(Signal::TERM);
        relay.signal(Signal::INT);
        relay.signal(Signal::TERM);
        assert_eq!(relay.end(), 0);
        assert_eq!(readers(&mut writer).await, 0, "it handed its lanes back");
    }
    assert_eq!(ids(&file).iter().collect::<BTreeSet<_>>().len(), 500);
    assert_eq!(ids(&file).len(), 500, "none twice");
}

/// In the wrong folder there is no file, and a relay without sinks would be healthy for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_a_sink_does_not_start() {
    let world = World::new().await;
    for words in [&["run", "--listen", "off"][..], &["run", "--once"]] {
        let end = End::of(&mut world.postrider(words)).expect(78);
        assert!(end.stderr.contains("there is no sink: declare one under `sinks`"), "{}", end.stderr);
    }
}
