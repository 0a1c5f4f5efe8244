use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use postrider::log::{Reader, ReaderOptions, Start, ring};
use postrider_relay::telemetry::{METRICS, Telemetry};
use postrider_relay::{RefusalKind, UnavailableKind};
use sqlx::AssertSqlSafe;

use super::super::{catalogue, metrics};
use super::*;

/// What a page says of a series.
fn sample<'p>(page: &'p str, series: &str) -> &'p str {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}"))
}

fn value(page: &str, series: &str) -> f64 {
    sample(page, series).parse().unwrap()
}

/// The names that a page describes.
fn described(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

async fn run(database: &Database, statement: &str) {
    let mut connection = database.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
}

/// A log with three settled events and two that are not, for the sink `web`.
async fn log_with_backlog() -> Database {
    let database = database().await;
    let options = ReaderOptions { start: Start::Earliest, ..ReaderOptions::new("web") };
    let mut reader = Reader::open(database.url().parse().unwrap(), options).await.unwrap();
    run(&database, "select postrider.emit('order.paid', '{}', key => n::text) from generate_series(1, 3) n")
        .await;
    let mut read = 0;
    while read < 3 {
        let batch = reader.next().await.unwrap();
        read += batch.len();
        reader.settle(&batch).await.unwrap();
    }
    reader.close().await.unwrap();
    run(&database, "select postrider.emit('order.paid', '{}', key => n::text) from generate_series(1, 2) n")
        .await;
    database
}

/// Uses everything once.
fn telemetry(sink: &str) -> Telemetry {
    let telemetry = Telemetry::new(sink, "file");
    telemetry.delivered([].into_iter(), Instant::now());
    telemetry.refused(RefusalKind::TooLarge);
    telemetry.unavailable(UnavailableKind::Timeout);
    telemetry.delivery(Duration::from_millis(3));
    telemetry.settled(10, Duration::from_millis(700));
    telemetry.in_flight(7);
    telemetry.lanes(3);
    telemetry
}

#[tokio::test]
async fn the_page_is_what_prometheus_expects_and_has_every_metric_we_document() {
    let database = log_with_backlog().await;
    let world = World::over(&database.url()).await;
    run(&database, "insert into postrider.capture_failures (relation, operation, sqlstate, message) values ('public.orders', 'INSERT', '22012', 'x')")
        .await;
    run(&database, "insert into postrider.misfits (outbox, rows, source_id, reason, found_by) values ('public.outbox', 2, '7', 'x', 'y')")
        .await;
    world.captured.send_replace(captured());
    telemetry("web");
    let (code, page) = world.get("/metrics").await;
    assert_eq!(code, 200);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let said = (
        said.status.code(),
        String::from_utf8(said.stdout).unwrap(),
        String::from_utf8(said.stderr).unwrap(),
    );
    assert_eq!(said, (Some(0), String::new(), String::new()), "{page}");

    assert_eq!(sample(&page, "postrider_capture_failures{table=\"public.orders\"}"), "1");
    assert_eq!(sample(&page, "postrider_outbox_misfits{table=\"public.outbox\"}"), "2");
    let state = |table: &str, state: &str| {
        format!("postrider_capture_table_state{{table=\"public.{table}\",state=\"{state}\"}}")
    };
    assert_eq!(sample(&page, &state("orders", "installed")), "0");
    assert_eq!(sample(&page, &state("orders", "disabled")), "1");
    assert_eq!(sample(&page, &state("lines", "installed")), "1");

    let documented = METRICS.iter().chain(catalogue::METRICS).map(|metric| metric.name).collect();
    assert_eq!(described(&page), documented);
    for metric in METRICS.iter().chain(catalogue::METRICS) {
        let line = page.lines().find(|line| {
            line.strip_prefix(metric.name)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
        });
        let line = line.unwrap_or_else(|| panic!("{} has no sample in\n{page}", metric.name));
        for label in metric.labels {
            assert!(line.contains(&format!("{label}=\"")), "{line} lacks {label}");
        }
    }
}

#[test]
fn the_table_in_the_documentation_is_that_of_the_code() {
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md")).unwrap();
    let table = catalogue::table();
    assert!(docs.contains(&table), "put this into docs/operating.md:\n{table}");
}

#[test]
fn every_state_has_its_word() {
    let states = [
        State::Starting,
        State::Running,
        State::Standby,
        State::Waiting { kind: UnavailableKind::Full, reason: String::new(), attempt: 1 },
        State::Paused,
        State::Disconnected { reason: String::new() },
        State::Failed { reason: String::new() },
        State::Stopped,
    ];
    assert_eq!(states.map(|state| state.word()), metrics::STATES);
}

#[tokio::test]
async fn what_a_sink_counts_is_shown() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    let telemetry = telemetry("counted");
    world.set(vec![sink("counted", State::Standby)]);
    let (_, page) = world.get("/metrics").await;
    assert_eq!(sample(&page, "postrider_events_refused_total{kind=\"too_large\",sink=\"counted\"}"), "1");
    assert_eq!(sample(&page, "postrider_events_refused_total{kind=\"route\",sink=\"counted\"}"), "0");
    assert_eq!(sample(&page, "postrider_events_settled_total{sink=\"counted\"}"), "10");
    assert_eq!(sample(&page, "postrider_delivery_seconds_bucket{sink=\"counted\",le=\"0.002\"}"), "0");
    assert_eq!(sample(&page, "postrider_delivery_seconds_bucket{sink=\"counted\",le=\"0.005\"}"), "1");
    assert_eq!(sample(&page, "postrider_settle_seconds_bucket{sink=\"counted\",le=\"1\"}"), "1");
    assert_eq!(sample(&page, "postrider_settle_seconds_bucket{sink=\"counted\",le=\"+Inf\"}"), "1");
    assert!((value(&page, "postrider_settle_seconds_sum{sink=\"counted\"}") - 0.7).abs() < 1e-9);
    assert_eq!(sample(&page, "postrider_lanes{sink=\"counted\"}"), "3");
    assert_eq!(sample(&page, "postrider_sink_state{sink=\"counted\",state=\"standby\"}"), "1");
    assert_eq!(sample(&page, "postrider_sink_state{sink=\"counted\",state=\"running\"}"), "0");

    // A second one of the same name goes on where the first one stood, as after a reload.
    telemetry.filtered(5);
    Telemetry::new("counted", "file").filtered(2);
    let (_, page) = world.get("/metrics").await;
    assert_eq!(sample(&page, "postrider_events_filtered_total{sink=\"counted\"}"), "7");

    // A sink that is gone keeps its counters; its gauges would stand still for ever.
    world.set(vec![]);
    let (_, page) = world.get("/metrics").await;
    assert_eq!(sample(&page, "postrider_events_filtered_total{sink=\"counted\"}"), "7");
    assert!(!page.contains("postrider_lanes{sink=\"counted\"}"), "{page}");
}

#[tokio::test]
async fn what_only_the_database_knows_is_shown() {
    let database = log_with_backlog().await;
    run(
        &database,
        "insert into postrider.parked (sink, id, lane, seq, type, payload, created_at, state)
         select s.sink, gen_random_uuid(), 0, n, 'order.paid', '{}', now(),
                (array['waiting', 'behind', 'behind', 'dead', 'dead', 'dead'])[n]
         from postrider.sinks s, generate_series(1, 6) n",
    )
    .await;
    // The ring turns, although the two events in the slot before are owed: that one is held.
    let mut connection = database.connect().await.unwrap();
    run(&database, "update postrider.ring set opened_at = now() - interval '2 days'").await;
    let turned = ring::turn(&mut connection, postrider::log::Retention::default()).await.unwrap();
    assert_eq!(turned, ring::Turn::To(1));
    let mut open = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select pg_current_xact_id()").execute(&mut open).await.unwrap();

    let world = World::over(&database.url()).await;
    let (_, page) = world.get("/metrics").await;
    for part in ["backlog", "lag", "parked", "ring", "transactions"] {
        assert_eq!(sample(&page, &format!("postrider_scrape_failed{{part=\"{part}\"}}")), "0");
    }
    assert_eq!(sample(&page, "postrider_backlog_events{sink=\"web\"}"), "2");
    assert_eq!(sample(&page, "postrider_backlog_is_exact{sink=\"web\"}"), "1");
    assert!(value(&page, "postrider_oldest_event_age_seconds{sink=\"web\"}") > 0.0);
    for (state, events) in [("waiting", "1"), ("behind", "2"), ("dead", "3")] {
        assert_eq!(
            sample(&page, &format!("postrider_parked_events{{sink=\"web\",state=\"{state}\"}}")),
            events
        );
    }
    assert!(value(&page, "postrider_ring_slot_age_seconds") < 3600.0);
    assert_eq!(sample(&page, "postrider_ring_filled_slots"), "1");
    assert_eq!(sample(&page, "postrider_ring_held_slots{sink=\"web\"}"), "1");
    assert!(value(&page, "postrider_ring_bytes") > 0.0);
    assert_eq!(sample(&page, "postrider_retention_seconds"), "604800");
    assert_eq!(sample(&page, "postrider_log_limit_bytes"), "5000000000");
    assert!(value(&page, "postrider_oldest_transaction_age_seconds{kind=\"session\"}") > 0.0);
    assert_eq!(sample(&page, "postrider_oldest_transaction_age_seconds{kind=\"prepared\"}"), "0");
    assert!(value(&page, "postrider_database_clock_offset_seconds").abs() < 1.0);
    drop(open);
}

/// What waits for an open transaction waits for nothing else, and its age is on the page.
#[tokio::test]
async fn fault_14_the_age_of_an_open_transaction_is_shown() {
    let database = log_with_backlog().await;
    let world = World::over(&database.url()).await;
    let age = "postrider_oldest_transaction_age_seconds{kind=\"session\"}";
    let mut open = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select postrider.emit('late', '{}', key => 'k'); select pg_sleep(1.1)")
        .execute(&mut open)
        .await
        .unwrap();
    let (_, page) = world.get("/metrics").await;
    assert!(value(&page, age) > 1.0, "{page}");
    sqlx::raw_sql("commit").execute(&mut open).await.unwrap();
    // The numbers of the first page are kept for a while.
    let (_, page) = World::over(&database.url()).await.get("/metrics").await;
    assert_eq!(sample(&page, "postrider_backlog_events{sink=\"web\"}"), "3", "it was never skipped");
}

#[tokio::test]
async fn a_part_that_cannot_be_asked_spoils_only_itself() {
    let database = log_with_backlog().await;
    run(&database, "drop table postrider.parked cascade").await;
    let world = World::over(&database.url()).await;
    let (code, page) = world.get("/metrics").await;
    assert_eq!(code, 200);
    assert_eq!(sample(&page, "postrider_scrape_failed{part=\"parked\"}"), "1");
    assert_eq!(sample(&page, "postrider_scrape_failed{part=\"ring\"}"), "0");
    assert_eq!(sample(&page, "postrider_database_up"), "1");
    assert!(value(&page, "postrider_oldest_event_age_seconds{sink=\"web\"}") > 0.0);
}

#[tokio::test]
async fn a_thousand_scrapes_in_a_second_cost_one_connection_and_few_looks() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    world.get("/metrics").await;
    let begin = Instant::now();
    for _ in 0..200 {
        assert_eq!(world.get("/metrics").await.0, 200);
    }
    let looks = begin.elapsed().as_secs() + 2;
    let mut connection = database.connect().await.unwrap();
    let connections: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'postrider metrics'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(connections, 1);
    assert!(looks < 100, "200 scrapes took {looks} s");
}

#[tokio::test]
async fn fault_111_no_secret_is_in_metrics_or_health() {
    let database = database().await;
    let url = database.url().replace("postgres@", "postgres:c4n4ry@");
    let dead = url.replace(&format!(":{}/", database.server().port()), ":1/");
    let reason = || "cannot open amqp://me:c4n4ry@broker/events with password=c4n4ry".to_owned();
    for url in [url, dead] {
        let world = World::over(&url).await;
        world.set(vec![
            SinkStatus {
                silence: Some(reason()),
                ..sink("a", State::Waiting { kind: UnavailableKind::Forbidden, reason: reason(), attempt: 1 })
            },
            sink("b", State::Failed { reason: reason() }),
            sink("c", State::Disconnected { reason: reason() }),
        ]);
        for path in ["/metrics", "/livez", "/readyz", "/healthz", "/healthz?verbose", "/healthz?format=json"]
        {
            let (_, body) = world.get(path).await;
            assert!(!body.is_empty() && !body.contains("c4n4ry"), "{path}: {body}");
        }
        let (_, body) = world.get("/healthz?verbose").await;
        assert!(body.contains("***"), "{body}");
    }
}
