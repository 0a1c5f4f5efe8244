//! Secrets after everything that can go wrong has gone wrong.

use std::fs;

use super::{CANARY, Relay, emit, get, until};
use crate::support::{End, empty_database, postrider_on};
use crate::world::{ask, run};
use postrider_testkit::{Process, Signal};

/// In the database's URL, in a file that is filled in, in payloads, in what an expression says about them: a relay whose sinks refuse and are
/// away, whose sessions are ended and whose configuration breaks repeats none of it.
#[tokio::test]
async fn fault_111_after_faults_no_canary_in_the_log_the_metrics_or_the_commands() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let folder = std::env::temp_dir().join(database.name());
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("postrider.yaml");
    let config = path.to_str().unwrap();
    let sinks = "http: { listen: '127.0.0.1:0' }
logs: { format: json }
sinks:
  refuses:
    null: {}
    start: earliest
    transform: error(.payload.card)
    retry: { max_attempts: 2, first: 10ms }
  away:
    file: { path: /proc/nobody/events }
    start: earliest
  fine:
    null: {}
    start: earliest
    source: ${SECRET}
";
    fs::write(&path, sinks).unwrap();
    emit(&database, 20).await;
    let url = database.url().replace("postgres@", "postgres:c4n4ry@");
    let mut relay = Relay::start(postrider_on(&url, &["run", "--config", config]).env("SECRET", CANARY));
    let address = relay.address();
    let pid = i32::try_from(relay.child.id()).unwrap();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");

    until(address, "/metrics", |_, page| {
        page.contains("postrider_parked_events{sink=\"refuses\",state=\"dead\"} 20")
            && page.contains("postrider_sink_state{sink=\"away\",state=\"waiting\"} 1")
    });
    assert_eq!(
        ask(&database, "select count(*) from postrider.parked where reason like '%c4n4ry%'").await,
        "20",
        "there is something to keep"
    );
    run(
        &database,
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name like 'postrider%'",
    )
    .await;
    emit(&database, 20).await;
    until(address, "/metrics", |_, page| page.contains("postrider_events_delivered_total{sink=\"fine\"} 40"));
    fs::write(
        &path,
        format!("database: postgres://me:{CANARY}@h:port/shop\nrelay: {{ token: {CANARY} }}\n{sinks}"),
    )
    .unwrap();
    Process::find(pid).unwrap().signal(Signal::HUP).unwrap();
    relay.until_said("the old one stays in effect");

    let mut said: Vec<(String, String)> = ["/metrics", "/healthz?verbose", "/healthz?format=json", "/readyz"]
        .map(|path| (path.to_owned(), get(address, path).1))
        .into();
    fs::write(&path, sinks).unwrap();
    for words in
        [&["status"][..], &["status", "--json"], &["doctor"], &["sinks", "list"], &["config", "show"]]
    {
        let mut command = postrider_on(&url, &[words, &["--config", config]].concat());
        let end = End::of(command.env("SECRET", CANARY).env("POSTRIDER_LOG", "trace"));
        assert!(matches!(end.code, Some(0 | 2)), "{words:?}: {}", end.stderr);
        said.push((words.join(" "), end.stdout + &end.stderr));
    }
    said.push(("the log".to_owned(), relay.stop()));
    for (place, text) in said {
        assert!(!text.is_empty() && !text.contains(CANARY), "the canary sings in {place}: {text}");
    }
    fs::remove_dir_all(folder).unwrap();
}
