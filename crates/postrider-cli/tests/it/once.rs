//! `postrider run --once` beside other relays.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postrider_testkit::{Process, Signal};

use crate::support::{End, postrider_on};
use crate::world::{ask, emit, installed, on, open_reader, run};

/// Its lanes may be another relay's for ever.
#[tokio::test(flavor = "multi_thread")]
async fn once_says_who_holds_the_lanes_and_ends_after_its_patience() {
    let database = installed().await;
    // Files have one relay at a time, and this one delivers nothing.
    let mut reader = open_reader(&database, "file").await;
    let file = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
    let place = format!("file:{}", file.display());
    let once = ["run", "--once", "--to", &place];
    on(&database, &once).expect(0);

    emit(&database, "order.paid", "k").await;
    let end = on(&database, &["run", "--once", "--patience", "1s", "--to", &place]).expect(69);
    assert!(
        end.stderr.contains("sink \"file\"") && end.stderr.contains("relay 1 holds them"),
        "{}",
        end.stderr
    );
    let batch = reader.next().await.unwrap();
    reader.settle(&batch).await.unwrap();
    on(&database, &once).expect(0);

    // One that can be shared, of which half is ours.
    let _shared = open_reader(&database, "null").await;
    for key in 0..40 {
        emit(&database, "order.paid", &key.to_string()).await;
    }
    let end = on(&database, &["run", "--once", "--patience", "1s", "--to", "null"]).expect(69);
    assert!(end.stderr.contains("relay 1 holds them"), "{}", end.stderr);
    let owed = "select count(*) from postrider.events e join postrider.cursors c using (lane) where c.sink = 'null' and e.seq > c.position";
    assert_ne!(ask(&database, owed).await, "0");
    let _ = std::fs::remove_file(file);
}

/// Nobody has to be stopped for it.
#[tokio::test(flavor = "multi_thread")]
async fn once_says_that_a_sink_is_paused_although_another_relay_holds_it() {
    let database = installed().await;
    let _reader = open_reader(&database, "file").await;
    emit(&database, "order.paid", "k").await;
    run(&database, "update postrider.sinks set paused_at = now()").await;
    let file = std::env::temp_dir().join(format!("{}-paused", database.name()));
    let place = format!("file:{}", file.display());
    let said = on(&database, &["run", "--once", "--patience", "1s", "--to", &place]).expect(69).stderr;
    assert!(said.contains("sink \"file\" is paused: `postrider sinks resume file`"), "{said}");
    assert!(!said.contains("holds them"), "{said}");
    let _ = std::fs::remove_file(file);
}

/// Behind a sequence that was set back there seems to be nothing to do.
#[tokio::test]
async fn fault_19_once_is_not_done_with_a_log_that_cannot_be_read() {
    let database = installed().await;
    emit(&database, "order.paid", "k").await;
    emit(&database, "order.paid", "k").await;
    let once = ["run", "--once", "--to", "null", "--start", "earliest"];
    on(&database, &once).expect(0);
    run(&database, "alter sequence postrider.seq restart").await;
    emit(&database, "order.paid", "k").await;
    let end = on(&database, &once).expect(1);
    assert!(end.stderr.contains("postrider rebase"), "{}", end.stderr);
    // Nor is a tail silent about it.
    let end = on(&database, &["tail", "--lines", "1", "--limit", "1"]).expect(1);
    assert!(end.stderr.contains("postrider rebase"), "{}", end.stderr);
}

/// Where a sink begins is decided once, and who says it again to no effect is told.
#[tokio::test]
async fn a_start_that_is_not_heeded_is_said() {
    let database = installed().await;
    emit(&database, "order.paid", "k").await;
    let files = ["a", "b"].map(|name| std::env::temp_dir().join(format!("{}-{name}", database.name())));
    let once = |file: &std::path::Path| {
        let place = format!("file:{}", file.display());
        on(&database, &["run", "--once", "--to", &place, "--start", "earliest"]).expect(0)
    };
    let end = once(&files[0]);
    assert!(!end.stderr.contains("--start is not heeded"), "{}", end.stderr);
    let end = once(&files[1]);
    assert!(end.stderr.contains("--start is not heeded"), "{}", end.stderr);
    assert!(end.stderr.contains("postrider sinks forget"), "{}", end.stderr);
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap_or_default(), "", "it goes on where it stopped");
    on(&database, &["sinks", "forget", "file", "--yes"]).expect(0);
    once(&files[1]);
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap().lines().count(), 1);
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}

/// Two files of `--to` are one sink, because it is known by its name alone: the second gets only what comes after the first.
#[tokio::test]
async fn another_file_for_the_same_sink_is_said() {
    let database = installed().await;
    let files = ["a", "b"].map(|name| std::env::temp_dir().join(format!("{}-to-{name}", database.name())));
    let once = |file: &std::path::Path| {
        on(&database, &["run", "--once", "--to", &format!("file:{}", file.display())]).expect(0).stderr
    };
    let word = "it goes on where it stopped";
    assert!(!once(&files[0]).contains(word), "a new sink");
    emit(&database, "order.paid", "k").await;
    once(&files[0]);
    let said = once(&files[0]);
    assert!(!said.contains(word), "the same file: {said}");
    let said = once(&files[1]);
    assert!(said.contains(word) && said.contains("postrider sinks forget"), "{said}");
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap_or_default(), "");
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}

/// `postrider run --to stdout | head -1`
#[tokio::test]
async fn a_standard_output_that_is_closed_ends_the_relay() {
    let database = installed().await;
    emit(&database, "first", "k").await;
    let words = ["run", "--listen", "off", "--to", "stdout", "--start", "earliest"];
    let mut relay =
        postrider_on(&database.url(), &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(relay.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("first"), "{line}");
    emit(&database, "second", "k").await;
    let end = tokio::task::spawn_blocking(|| End::from(relay.wait_with_output().unwrap()));
    let end = tokio::time::timeout(Duration::from_mins(2), end).await.expect("it ends").unwrap().expect(69);
    assert!(end.stderr.contains("standard output is closed: who read it has ended"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.readers").await, "0", "it said goodbye");
    let owed = "select sum(events) from postrider.backlog";
    assert_eq!(ask(&database, owed).await, "1", "what nobody read is owed");
}

/// `postrider run --to stdout >&-`, and `1</dev/null`: nobody gets anything, and nothing is settled.
#[tokio::test]
async fn a_standard_output_that_cannot_be_written_delivers_nothing() {
    let database = installed().await;
    emit(&database, "order.paid", "k").await;
    let words = ["run", "--once", "--start", "earliest", "--to", "stdout"];
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_postrider")]).args(words);
    let end = End::of(shell.env("DATABASE_URL", database.url())).expect(69);
    assert!(end.stderr.contains("standard output was closed when the process began"), "{}", end.stderr);
    let mut only_read = postrider_on(&database.url(), &words);
    let end = End::of(only_read.stdout(File::open("/dev/null").unwrap())).expect(69);
    assert!(end.stderr.contains("standard output is not open for writing"), "{}", end.stderr);
    let end = on(&database, &words).expect(0);
    assert_eq!(end.stdout.lines().count(), 1, "it comes again: {}", end.stdout);
    // Who sends it there wants it so.
    emit(&database, "order.sent", "k").await;
    End::of(postrider_on(&database.url(), &words).stdout(Stdio::null())).expect(0);
    assert_eq!(ask(&database, "select sum(events) from postrider.backlog").await, "0");
}

/// What a server takes its time for is no reason to print statements.
#[tokio::test]
async fn a_slow_statement_is_not_in_the_log() {
    let database = installed().await;
    let words = ["run", "--listen", "off", "--to", "null", "--start", "earliest"];
    let relay = postrider_on(&database.url(), &words).stderr(Stdio::piped()).spawn().unwrap();
    let mut slow = database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table postrider.progress in share mode").execute(&mut slow).await.unwrap();
    emit(&database, "order.paid", "k").await;
    let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                 where a.datname = current_database() and not l.granted
                   and a.query_start < clock_timestamp() - interval '1.2 seconds'";
    let begun = Instant::now();
    while ask(&database, waits).await == "0" {
        assert!(begun.elapsed() < Duration::from_mins(2), "nothing waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
    let begun = Instant::now();
    while ask(&database, "select sum(events) from postrider.backlog").await != "0" {
        assert!(begun.elapsed() < Duration::from_mins(2), "it is not settled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Process::find(i32::try_from(relay.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
    let end = End::from(relay.wait_with_output().unwrap()).expect(0);
    for word in ["slow statement", "insert into", "postrider.progress"] {
        assert!(!end.stderr.contains(word), "{word}: {}", end.stderr);
    }
}

#[tokio::test]
async fn once_says_what_it_delivered() {
    let database = installed().await;
    let file = std::env::temp_dir().join(format!("{}-told", database.name()));
    let place = format!("file:{}", file.display());
    for key in ["a", "b", "c"] {
        emit(&database, "order.paid", key).await;
    }
    let end = on(&database, &["run", "--once", "--json", "--start", "earliest", "--to", &place]).expect(0);
    assert_eq!(
        end.json(),
        serde_json::json!({ "sinks": [{ "sink": "file", "kind": "file", "delivered": 3 }] })
    );
    assert!(end.stderr.contains("events=3"), "{}", end.stderr);
    // Where standard output is the sink it is that alone.
    let end = on(&database, &["run", "--once", "--json", "--start", "earliest", "--to", "stdout"]).expect(0);
    assert_eq!(end.stdout.lines().count(), 3, "{}", end.stdout);
    std::fs::remove_file(file).unwrap();
}

/// A session that somebody ends is opened anew, as the relay's own are.
#[tokio::test(flavor = "multi_thread")]
async fn once_outlives_sessions_that_are_ended() {
    let database = installed().await;
    // More than a pipe holds, so that it is still at work.
    run(&database, "select postrider.emit('a', json_build_object('x', repeat('y', 1000)), key => n::text) from generate_series(1, 500) n").await;
    let words = ["run", "--once", "--listen", "off", "--to", "stdout", "--start", "earliest"];
    let mut child =
        postrider_on(&database.url(), &words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pipe = child.stdout.take().unwrap();
    let begun = Instant::now();
    let ours = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and application_name like 'postrider%'";
    for _ in 0..3 {
        while ask(&database, &format!("select count(*) {ours} and state = 'idle'")).await == "0" {
            assert!(begun.elapsed() < Duration::from_mins(1), "it opens no session");
        }
        ask(&database, &format!("select count(pg_terminate_backend(pid)) {ours}")).await;
    }
    let lines = BufReader::new(pipe).lines().count();
    assert!(child.wait().unwrap().success(), "after {lines} lines");
    assert!(lines >= 500, "{lines}");
}

/// Whoever has only cron must get them too: what is due is tried, and what was behind it comes with it.
#[tokio::test]
async fn once_tries_parked_events_that_are_due() {
    let database = installed().await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let config = path.to_str().unwrap();
    let sinks = |transform: &str| {
        let sink = "null: {}, start: earliest, retry: { first: 1h, max: 1h }";
        std::fs::write(&path, format!("sinks:\n  web: {{ {sink}, transform: '{transform}' }}\n")).unwrap();
    };
    let once = ["run", "--once", "--json", "--config", config];
    let delivered = || on(&database, &once).expect(0).json()["sinks"][0]["delivered"].clone();
    sinks("error(\"no\")");
    emit(&database, "order.paid", "k").await;
    emit(&database, "order.sent", "k").await;
    assert_eq!(delivered(), 0);
    sinks(".payload");
    assert_eq!(delivered(), 0, "it is not due");
    on(&database, &["dead", "retry", "--sink", "web", "--parked", "--yes"]).expect(0);
    assert_eq!(delivered(), 2);
    assert_eq!(ask(&database, "select count(*) from postrider.parked").await, "0");
    std::fs::remove_file(path).unwrap();
}
