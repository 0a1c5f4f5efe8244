//! `postrider tail`.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use serde_json::{Value, json};

use crate::support::{End, postrider_on};
use crate::world::{ask, emit, installed, on, run};

/// `postrider tail | head -1`, on a quiet day.
#[tokio::test]
async fn a_reader_that_goes_away_ends_it_although_nothing_comes() {
    let database = installed().await;
    emit(&database, "order.paid", "k").await;
    let mut child =
        postrider_on(&database.url(), &["tail", "--lines", "1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("order.paid"));
    drop(lines);
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_mins(1) {
            child.kill().unwrap();
            panic!("it goes on for nobody");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(child.wait().unwrap().success());
}

/// A tail at work; ended when dropped.
struct Following {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    talk: Lines<BufReader<ChildStderr>>,
}

impl Following {
    /// Begins with the last event, so that its first line says that it has begun.
    async fn start(database: &Database, words: &[&str]) -> Self {
        emit(database, "begin.here", "begin").await;
        let words = [&["tail", "--json", "--lines", "1"], words].concat();
        let mut child = postrider_on(&database.url(), &words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let talk = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut following = Self { child, lines, talk };
        assert_eq!(following.next()["type"], "begin.here");
        following
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    /// The next thing it says, besides what the server had to say.
    fn says(&mut self) -> String {
        self.talk.find_map(|line| line.ok().filter(|line| line.starts_with("note: "))).unwrap()
    }

    /// That a connection was lost is said once, and that there is another one.
    #[track_caller]
    fn is_told(&mut self) {
        for wanted in ["note: the connection is lost, waiting for another one: ", "note: connected again"] {
            let said = self.says();
            assert!(said.starts_with(wanted), "{said}");
        }
    }

    fn types(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.next()["type"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn follows_what_commits_also_when_it_commits_late() {
    let database = installed().await;
    let mut following = Following::start(&database, &[]).await;
    let mut slow = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select postrider.emit('slow', '1', key => 'a')").execute(&mut slow).await.unwrap();
    emit(&database, "fast", "a").await;
    assert_eq!(following.types(1), ["fast"], "an open transaction delays only itself");
    sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
    assert_eq!(following.types(1), ["slow"], "its number is lower, and it is not missed");
    run(&database, "begin; select postrider.emit('lost', '1'); rollback").await;
    run(
        &database,
        "select count(postrider.emit('many', to_json(n), key => n::text)) from generate_series(1, 2000) n",
    )
    .await;
    let mut payloads: Vec<i64> = (0..2000).map(|_| following.next()["payload"].as_i64().unwrap()).collect();
    payloads.sort_unstable();
    assert!(payloads.into_iter().eq(1..=2000), "more than a page, each once");
    // It leaves no trace.
    let mut connection = database.connect().await.unwrap();
    let traces: i64 = sqlx::query_scalar(
        "select (select count(*) from postrider.sinks) + (select count(*) from postrider.readers) + (select count(*) from postrider.progress)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(traces, 0);
}

/// Ends the sessions of the binary on this database.
const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'postrider'";

#[tokio::test]
async fn goes_on_where_it_was_after_its_connection_was_lost() {
    let database = installed().await;
    let mut following = Following::start(&database, &[]).await;
    // One that stands below what was shown before, and commits after the loss.
    let mut slow = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select postrider.emit('slow', '1', key => 'a')").execute(&mut slow).await.unwrap();
    for n in 0..5 {
        emit(&database, &format!("before {n}"), "a").await;
        assert_eq!(following.types(1), [format!("before {n}")]);
        emit(&database, &format!("meanwhile {n}"), "b").await;
        assert_eq!(ask(&database, TERMINATE).await, "1");
        emit(&database, &format!("after {n}"), "b").await;
        assert_eq!(following.types(2), [format!("meanwhile {n}"), format!("after {n}")]);
        following.is_told();
    }
    sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
    emit(&database, "last", "a").await;
    assert_eq!(following.types(2), ["slow", "last"], "nothing is missing, and nothing comes twice");
}

#[tokio::test]
async fn goes_on_where_it_was_after_the_server_was_away() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = server.database(&Template::empty()).await.unwrap();
    on(&database, &["init"]).expect(0);
    let mut following = Following::start(&database, &[]).await;
    for stop in ["fast", "immediate"] {
        emit(&database, stop, "a").await;
        assert_eq!(following.types(1), [stop]);
        match stop {
            "fast" => server.stop().await.unwrap(),
            _ => server.stop_immediate().await.unwrap(),
        }
        let said = following.says();
        assert!(said.starts_with("note: the connection is lost"), "{said}");
        server.start().await.unwrap();
        emit(&database, "back", "a").await;
        assert_eq!(following.types(1), ["back"]);
        assert_eq!(following.says(), "note: connected again");
    }
}

/// What it has shown is on disk: a crash takes none of it back, and what comes later under the same numbers is not taken for it.
#[tokio::test]
async fn shows_nothing_that_a_crash_takes_back() {
    let settings = Settings::for_tests().set("wal_writer_delay", "10s").set("wal_writer_flush_after", 0);
    let server = PostgresServer::private(Version::default(), settings).await.unwrap();
    let database = server.database(&Template::empty()).await.unwrap();
    on(&database, &["init"]).expect(0);
    let mut following = Following::start(&database, &[]).await;
    run(&database, "set synchronous_commit = off; select postrider.emit('before', '1', key => 'a')").await;
    assert_eq!(following.types(1), ["before"]);
    server.crash().await.unwrap();
    server.start().await.unwrap();
    assert_eq!(
        ask(&database, "select count(*)::text from postrider.events where type = 'before'").await,
        "1"
    );
    emit(&database, "behind", "a").await;
    assert_eq!(following.types(1), ["behind"]);
}

/// More than pipes and sockets hold is asked for, so that the loss comes in the middle of it.
#[tokio::test]
async fn goes_on_in_the_middle_of_the_past() {
    const EVENTS: i64 = 20_000;
    let database = installed().await;
    run(
        &database,
        format!("select count(postrider.emit('past', json_build_object('n', n, 'fill', repeat('x', 1000)), key => n::text)) from generate_series(1, {EVENTS}) n"),
    )
    .await;
    for words in [["--since", "1h"], ["--lines", "30000"]] {
        // Written before it began and committed after it: not of the past, though its number is.
        let mut slow = database.connect().await.unwrap();
        sqlx::raw_sql("begin; select postrider.emit('slow', '1', key => 'k')")
            .execute(&mut slow)
            .await
            .unwrap();
        let words = [&["tail", "--json"][..], &words].concat();
        let mut child = postrider_on(&database.url(), &words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let talk = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut following = Following { child, lines, talk };
        let mut number = || following.next()["payload"]["n"].as_i64().unwrap();
        assert_eq!(number(), 1);
        assert_eq!(ask(&database, TERMINATE).await, "1");
        sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
        emit(&database, "new", "k").await;
        for n in 2..=EVENTS {
            assert_eq!(number(), n, "{words:?}");
        }
        assert_eq!(following.types(2), ["slow", "new"], "each once, behind the past");
        following.is_told();
        run(&database, "delete from postrider.events where type <> 'past'").await;
    }
}

#[tokio::test]
async fn shows_only_what_is_asked_for() {
    let database = installed().await;
    run(
        &database,
        "select postrider.emit('order.paid', '{\"a\" :  1}', key => '7', tenant => 'acme', entity => 'order', headers => '{\"h\": \"v\"}');
         select postrider.emit('order.made', '2', key => '8', tenant => 'acme');
         select postrider.emit('mail.sent', '3', key => '7')",
    )
    .await;
    let payloads = |words: &[&str], limit: &str| -> Vec<String> {
        let words = [&["tail", "--json", "--lines", "10", "--limit", limit], words].concat();
        let end = on(&database, &words).expect(0);
        let payload = |line: &str| serde_json::from_str::<Value>(line).unwrap()["payload"].to_string();
        end.stdout.lines().map(payload).collect()
    };
    assert_eq!(payloads(&[], "3"), ["{\"a\":1}", "2", "3"]);
    assert_eq!(payloads(&[], "2"), ["{\"a\":1}", "2"], "ends after so many");
    assert_eq!(payloads(&["--type", "order.*"], "2").len(), 2);
    assert_eq!(payloads(&["--type", "mail.*"], "1"), ["3"]);
    assert_eq!(payloads(&["--key", "7"], "2"), ["{\"a\":1}", "3"]);
    assert_eq!(payloads(&["--tenant", "acme", "--entity", "order"], "1"), ["{\"a\":1}"]);
    let end = on(&database, &["tail", "--lines", "2", "--limit", "2", "--json"]).expect(0);
    assert_eq!(end.stdout.lines().count(), 2, "the last two");
    assert!(end.stdout.contains("\"payload\":2") && end.stdout.contains("\"payload\":3"), "{}", end.stdout);
    let end = on(&database, &["tail", "--since", "1h", "--limit", "3"]).expect(0);
    let first = end.stdout.lines().next().unwrap();
    assert!(
        first.contains(" order.paid ") && first.contains("key=7") && first.contains("{\"a\" :  1}"),
        "{first}"
    );
    assert!(!end.stdout.contains('\u{1b}'), "no colours without a terminal");

    let mut following = Following::start(&database, &["--type", "*.here"]).await;
    emit(&database, "not", "1").await;
    emit(&database, "once.here", "1").await;
    let event = following.next();
    assert_eq!((&event["type"], &event["key"]), (&json!("once.here"), &json!("1")));
}

#[tokio::test]
async fn ends_when_nobody_reads() {
    let database = installed().await;
    let mut following = Following::start(&database, &[]).await;
    drop(std::mem::replace(&mut following.lines, BufReader::new(empty()).lines()));
    while following.child.try_wait().unwrap().is_none() {
        emit(&database, "more", "1").await;
    }
    assert_eq!(following.child.wait().unwrap().code(), Some(0));
}

/// The output of a command that says nothing.
fn empty() -> ChildStdout {
    let mut child = crate::support::postrider(&["sql", "--help"]).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    child.wait().unwrap();
    stdout
}

#[tokio::test]
async fn a_role_that_may_only_look_at_views_is_told_so() {
    let database = installed().await;
    let role = format!("{}_looks", database.name());
    run(&database, format!("create role {role} login in role postrider_reader")).await;
    for words in [&["tail"][..], &["dead", "list"], &["dead", "show", "1"]] {
        let end = End::of(&mut postrider_on(&database.url_as(&role), words)).expect(1);
        let remedy = format!("grant postrider_relay to {role};");
        assert!(
            end.stderr.contains("may not read the log itself")
                && end.stderr.lines().any(|line| line == remedy),
            "{}",
            end.stderr
        );
    }
    run(&database, format!("drop role {role}")).await;
}
