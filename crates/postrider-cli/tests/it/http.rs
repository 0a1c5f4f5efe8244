//! `postrider run` as its supervisor and its monitor see it.

mod canary;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use postrider_testkit::{Database, Process, Signal};
use serde_json::Value;
use sqlx::Connection as _;

use crate::support::{End, empty_database, postrider_on};
use crate::world::{ask, run};

const PATIENCE: Duration = Duration::from_mins(2);
const CANARY: &str = "c4n4ry";

/// A relay at work, as loud as it can be.
pub(crate) struct Relay {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Relay {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .env("POSTRIDER_LOG", "trace")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (to, lines) = mpsc::channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        Self { child, lines, said: Vec::new() }
    }

    /// Where it serves, by its own word.
    pub(crate) fn address(&mut self) -> SocketAddr {
        loop {
            let line = self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("no address in {:#?}", self.said));
            let object: Value = serde_json::from_str(&line).unwrap_or_default();
            self.said.push(line);
            if object["message"] == "metrics and health are served" {
                return object["address"].as_str().unwrap().parse().unwrap();
            }
        }
    }

    fn until_said(&mut self, wanted: &str) {
        while !self.said.last().is_some_and(|line| line.contains(wanted)) {
            let line = self.lines.recv_timeout(PATIENCE);
            self.said.push(line.unwrap_or_else(|_| panic!("no {wanted:?} in {:#?}", self.said)));
        }
    }

    /// Tells it to stop, and answers with everything it said.
    pub(crate) fn stop(mut self) -> String {
        let pid = i32::try_from(self.child.id()).unwrap();
        Process::find(pid).unwrap().signal(Signal::TERM).unwrap();
        self.said.extend(self.lines.iter());
        let status = self.child.wait().unwrap();
        let said = self.said.join("\n");
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Asks until the answer is as wanted.
pub(crate) fn until(address: SocketAddr, path: &str, is_wanted: impl Fn(u16, &str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let (code, body) = get(address, path);
        if is_wanted(code, &body) {
            return body;
        }
        assert!(begin.elapsed() < PATIENCE, "{path} stays at {code}:\n{body}");
        thread::sleep(Duration::from_millis(50));
    }
}

async fn emit(database: &Database, events: i32) {
    let mut connection = database.connect().await.unwrap();
    sqlx::query("select postrider.emit('order.paid', '{\"card\": \"c4n4ry\"}', key => n::text) from generate_series(1, $1) n")
        .bind(events)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// Waits until the supervisor is told this; other news may come before.
fn hears(systemd: &UnixDatagram, wanted: &str) {
    let mut buffer = [0; 256];
    loop {
        let length = systemd.recv(&mut buffer).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
        if &buffer[..length] == wanted.as_bytes() {
            return;
        }
    }
}

#[tokio::test]
async fn fault_111_a_relay_at_work_counts_tells_its_supervisor_and_keeps_secrets() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    emit(&database, 100).await;

    let socket = std::env::temp_dir().join(format!("postrider-http-{}", std::process::id()));
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_read_timeout(Some(PATIENCE)).unwrap();
    let url = database.url().replace("postgres@", "postgres:c4n4ry@");
    let words =
        ["run", "--to", "null", "--start", "earliest", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut relay = Relay::start(
        postrider_on(&url, &words).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "1000000"),
    );
    let address = relay.address();
    hears(&systemd, "READY=1");
    hears(&systemd, "WATCHDOG=1");
    std::fs::remove_file(&socket).unwrap();

    let page = until(address, "/metrics", |_, page| {
        page.contains("\npostrider_events_delivered_total{sink=\"null\"} 100\n")
    });
    for sample in [
        "postrider_lag_since_transaction_seconds_count{sink=\"null\"} 100",
        "postrider_lag_since_read_seconds_bucket{sink=\"null\",le=\"+Inf\"} 100",
        "postrider_sink_info{sink=\"null\",kind=\"null\"} 1",
        "postrider_database_up 1",
    ] {
        assert!(page.contains(&format!("\n{sample}\n")), "no {sample} in\n{page}");
    }
    until(address, "/readyz", |code, _| code == 200);
    until(address, "/metrics", |_, page| {
        page.contains("\npostrider_backlog_events{sink=\"null\"} 0\n")
            && page.contains("\npostrider_lanes{sink=\"null\"} 16\n")
    });
    let (code, health) = get(address, "/healthz?verbose");
    assert_eq!(code, 200, "{health}");
    assert!(health.contains("[+] sink null (null): running for "), "{health}");
    let (_, json) = get(address, "/healthz?format=json");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["sinks"][0]["delivered"], 100);

    let said = relay.stop();
    hears(&systemd, "STOPPING=1");
    for (place, text) in [("the log", &said), ("/metrics", &page), ("/healthz", &health), ("/healthz", &json)]
    {
        assert!(!text.contains(CANARY), "the canary sings in {place}: {text}");
    }
    assert!(said.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{said}");
}

/// Not only when the first event comes, which may be hours later.
#[tokio::test]
async fn a_file_that_cannot_be_opened_is_told_before_the_first_event() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let folder = std::env::temp_dir().join(format!("postrider-http-{}", database.name()));
    let to = format!("file:{}", folder.join("events.ndjson").display());
    let words = ["run", "--to", &to, "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut relay = Relay::start(&mut postrider_on(&database.url(), &words));
    let address = relay.address();
    let health = until(address, "/readyz", |code, body| code == 503 && body.contains("cannot open"));
    assert!(health.contains("No such file or directory"), "{health}");
    let status = End::of(&mut postrider_on(&database.url(), &["status"]));
    // With the next heartbeat at the latest.
    let begin = Instant::now();
    let mut said = status.stdout;
    while !said.contains("cannot open") {
        assert!(begin.elapsed() < PATIENCE, "{said}");
        said = End::of(&mut postrider_on(&database.url(), &["status"])).stdout;
    }
    std::fs::create_dir(&folder).unwrap();
    until(address, "/readyz", |code, _| code == 200);
    relay.stop();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A rollout with a wrong address must not become ready.
#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_told_before_the_first_event() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let words = ["run", "--to", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut relay = Relay::start(&mut postrider_on(&database.url(), &words));
    let address = relay.address();
    let health = until(address, "/readyz", |code, body| {
        assert_ne!(code, 200, "nobody knows whether it is there: {body}");
        body.contains("refused")
    });
    assert!(health.contains("redis"), "{health}");
    relay.stop();
}

#[tokio::test]
async fn a_port_that_is_taken_may_come_free_and_an_address_of_others_does_not() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (address, code) in [(address.as_str(), 69), ("192.0.2.1:9185", 78)] {
        let words = ["run", "--to", "null", "--listen", address];
        let end = End::of(&mut postrider_on(&database.url(), &words)).expect(code);
        assert!(end.stderr.contains(&format!("cannot listen on {address}")), "{}", end.stderr);
    }
}

/// What `postrider status` says of the only sink.
fn status(database: &Database) -> Value {
    let end = End::of(&mut postrider_on(&database.url(), &["status", "--json"]));
    assert!([Some(0), Some(2)].contains(&end.code), "{}", end.stderr);
    end.json()["sinks"][0].clone()
}

fn until_status(database: &Database, wanted: &str) -> Value {
    let begin = Instant::now();
    loop {
        let sink = status(database);
        if sink["state"] == wanted {
            return sink;
        }
        assert!(begin.elapsed() < PATIENCE, "never {wanted}: {sink}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn health_and_status_tell_the_same_story_while_the_relay_lives() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let file = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
    let place = format!("file:{}", file.display());
    let words = ["run", "--to", &place, "--start", "earliest", "--listen", "127.0.0.1:0"];
    let words = [&words[..], &["--log-format", "json"]].concat();
    let mut relay = Relay::start(&mut postrider_on(&database.url(), &words));
    let address = relay.address();
    until_status(&database, "running");

    let begin = Instant::now();
    while std::fs::remove_file(&file).is_err() {
        assert!(begin.elapsed() < PATIENCE, "it is opened before there is an event");
        thread::sleep(Duration::from_millis(5));
    }
    std::fs::create_dir(&file).unwrap();
    emit(&database, 1).await;
    let sink = until_status(&database, "waiting");
    let health = until(address, "/healthz?verbose", |code, _| code == 503);
    let end = End::of(&mut postrider_on(&database.url(), &["status"])).expect(2);
    let said = &sink["relays"][0];
    for (place, text) in [
        ("health", health.as_str()),
        ("status", &end.stdout),
        ("JSON", said["trouble"].as_str().unwrap()),
        ("JSON", sink["troubles"][0].as_str().unwrap()),
        ("the view lag", &ask(&database, "select trouble from postrider.lag").await),
        ("the view delivery", &ask(&database, "select trouble from postrider.delivery").await),
    ] {
        for words in [
            "what the configuration names is not there (attempt ",
            "is no regular file",
            "create it or correct the configuration; delivery goes on when it is there",
        ] {
            assert!(text.contains(words), "no {words:?} in {place}: {text}");
        }
    }
    let since = said["since"].as_str().unwrap().to_owned();
    let heard = said["heard_at"].clone();
    let begin = Instant::now();
    let later = loop {
        let sink = status(&database);
        if sink["relays"][0]["heard_at"] != heard {
            break sink;
        }
        assert!(begin.elapsed() < PATIENCE, "no heartbeat after {sink}");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(later["relays"][0]["since"], since, "it is the same trouble");

    std::fs::remove_dir(&file).unwrap();
    let sink = until_status(&database, "running");
    assert_eq!((&sink["trouble"], &sink["relays"][0]["trouble"]), (&false.into(), &Value::Null));

    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    emit(&database, 1).await;
    until_status(&database, "waiting");
    relay.child.kill().unwrap();
    relay.child.wait().unwrap();
    let sink = until_status(&database, "no relay");
    assert_eq!(sink["relays"], Value::Array(Vec::new()), "the dead say nothing");
    std::fs::remove_dir(&file).unwrap();
}

#[tokio::test]
async fn a_relay_that_cannot_read_says_so_until_it_can() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let words = ["run", "--to", "null", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut relay = Relay::start(&mut postrider_on(&database.url(), &words));
    relay.address();
    until_status(&database, "running");
    run(&database, "alter sequence postrider.seq cache 20").await;
    // The log is checked when it is opened, and else once a minute.
    run(&database, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()").await;
    let sink = until_status(&database, "failed");
    let trouble = sink["troubles"][0].as_str().unwrap();
    assert!(trouble.contains("alter sequence postrider.seq cache 1"), "{trouble}");
    run(&database, "alter sequence postrider.seq cache 1").await;
    let sink = until_status(&database, "running");
    assert_eq!(sink["trouble"], false, "{sink}");
    relay.stop();
}
