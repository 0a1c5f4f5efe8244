use postrider_relay::UnavailableKind;
use postrider_testkit::Settings as ServerSettings;
use serde_json::Value;

use super::*;

fn waiting(name: &str) -> SinkStatus {
    let kind = UnavailableKind::Connection;
    sink(name, State::Waiting { kind, reason: "connection refused".to_owned(), attempt: 4 })
}

#[tokio::test]
async fn livez_fails_only_when_a_loop_is_stuck() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    assert_eq!(world.get("/livez").await, (200, "alive\n".to_owned()));
    // Neither a sink in trouble nor a database in trouble is a reason to be started anew.
    world.set(vec![waiting("web"), sink("b", State::Disconnected { reason: "x".to_owned() })]);
    assert_eq!(world.get("/livez").await.0, 200);
    let stuck = SinkStatus { silent_for: Duration::from_secs(31), ..sink("web", State::Running) };
    world.set(vec![sink("fine", State::Running), stuck.clone()]);
    let (code, body) = world.get("/livez").await;
    assert_eq!((code, body.as_str()), (503, "sink web: its loop has not turned for 31 s\n"));
    assert!(!is_alive(std::slice::from_ref(&stuck)));
    assert_eq!(world.get("/readyz").await.0, 503);
    // One that ended as it was told does not turn, and need not.
    let stopped = SinkStatus { state: State::Stopped, ..stuck };
    assert!(is_alive(&[stopped]));
}

#[tokio::test]
async fn readyz_wants_every_sink_well() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    for (state, code) in [
        (State::Starting, 503),
        (State::Running, 200),
        (State::Standby, 200),
        (State::Paused, 200),
        (State::Disconnected { reason: "x".to_owned() }, 503),
        (State::Failed { reason: "x".to_owned() }, 503),
        (State::Stopped, 503),
    ] {
        let doing = state.word();
        world.set(vec![sink("fine", State::Running), sink("web", state)]);
        let (found, body) = world.get("/readyz").await;
        assert_eq!(found, code, "{doing}: {body}");
        assert_eq!(body.contains("web"), code == 503, "only trouble is named: {body}");
    }
}

#[tokio::test]
async fn healthz_says_why_and_what_to_do() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    world.set(vec![sink("fine", State::Running), waiting("web")]);
    let (code, body) = world.get("/healthz?verbose").await;
    assert_eq!(code, 503);
    let lines: Vec<&str> = body.lines().collect();
    assert!(lines[0].starts_with("[+] database: answers in "), "{body}");
    assert!(lines[1].starts_with("[+] sink fine (file): running for "), "{body}");
    assert!(lines[1].contains("3 lanes, 7 in flight, 1234 delivered"), "{body}");
    assert!(lines[2].starts_with("[-] sink web (file): waiting for "), "{body}");
    assert!(lines[2].contains("the sink cannot be reached (attempt 4): connection refused"), "{body}");
    assert!(lines[2].contains(UnavailableKind::Connection.policy().advice), "{body}");
    assert_eq!(lines[3], "not well");

    let (code, body) = world.get("/healthz?format=json").await;
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(code, 503);
    assert_eq!((&document["well"], &document["database"]["well"]), (&false.into(), &true.into()));
    assert_eq!(document["sinks"][1]["state"], "waiting");
    assert_eq!(document["sinks"][1]["advice"], UnavailableKind::Connection.policy().advice);
    assert_eq!(document["sinks"][0]["delivered"], 1234);

    world.set(vec![sink("fine", State::Running)]);
    assert_eq!(world.get("/healthz").await, (200, "well\n".to_owned()));
    // A table that is not captured is everybody's business, and no reason to take the relay away.
    world.captured.send_replace(captured());
    let body = "[-] table public.orders: disabled: it is switched off\nnot well\n".to_owned();
    assert_eq!(world.get("/healthz").await, (503, body));
    assert_eq!(world.get("/readyz").await, (200, "well\n".to_owned()));
    let document: Value = serde_json::from_str(&world.get("/healthz?format=json").await.1).unwrap();
    assert_eq!(document["tables"][0]["state"], "disabled");
    world.captured.send_replace(CaptureStatus::default());
    assert_eq!(world.get("/healthz?format=xml").await.0, 400);
}

#[tokio::test]
async fn a_database_that_is_stopped_and_started_is_noticed_and_metrics_never_fail() {
    let server = PostgresServer::private(Version::default(), ServerSettings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let world = World::over(&database.url()).await;
    assert_eq!(world.get("/readyz").await.0, 200);
    let up = world.get("/metrics").await.1;
    assert!(up.contains("\npostrider_database_up 1\n"), "{up}");
    server.stop_immediate().await.unwrap();

    let body = world.until("/readyz", |code, _| code == 503).await;
    assert!(body.starts_with("[-] database: "), "{body}");
    let down = world
        .until("/metrics", |code, body| {
            assert_eq!(code, 200);
            body.contains("\npostrider_database_up 0\n")
        })
        .await;
    assert!(down.contains("postrider_sink_state{sink=\"web\",state=\"running\"} 1"), "{down}");
    assert!(down.contains("process_cpu_seconds_total "), "{down}");
    assert!(!down.contains("postrider_ring_bytes "), "old numbers would be lies: {down}");
    assert_eq!(world.get("/livez").await.0, 200);

    server.start().await.unwrap();
    world.until("/readyz", |code, _| code == 200).await;
    world.until("/metrics", |_, body| body.contains("\npostrider_database_up 1\n")).await;
}

#[tokio::test]
async fn a_database_that_says_nothing_costs_two_seconds() {
    let database = database().await;
    // The kernel accepts for it, and nobody reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let world = World::over(&database.url_via(silent.local_addr().unwrap().port())).await;
    let begin = std::time::Instant::now();
    let (code, body) = world.get("/metrics").await;
    assert_eq!(code, 200);
    assert!(body.contains("\npostrider_database_up 0\n"), "{body}");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let (code, body) = world.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains("no answer within 2 seconds"), "{body}");
}
