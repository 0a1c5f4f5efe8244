//! Payloads of every size and shape, through the whole relay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use postrider_relay::{EnvelopeKind, SinkSettings};
use postrider_testkit::Seed;
use rand::RngExt as _;
use rand::rngs::StdRng;
use sqlx::PgConnection;

use super::{rounds, run};
use crate::support::{Answer, Probe, database, emit_many, sink, start, until};

async fn emit_payload(
    connection: &mut PgConnection,
    number: usize,
    payload: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("select postrider.emit($1, $2::text::json, key => 'p' || $1)")
        .bind(number.to_string())
        .bind(payload)
        .execute(connection)
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_41_payloads_of_every_size_are_delivered_and_others_flow() {
    /// Too deep or too large for an expression.
    const REFUSED: [usize; 3] = [8, 9, 10];
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    // As much as this server takes, so that what it lets in is no smaller than what others let in.
    run(&mut writer, "set max_stack_depth = '7MB'").await;
    let bodies: Arc<Mutex<BTreeMap<usize, Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&bodies);
    let plain = Probe::answering(move |message| {
        let number: usize = message.record.r#type.parse().unwrap();
        if number < 1000 {
            kept.lock().unwrap().insert(number, message.body.clone());
        }
        Answer::Take
    });
    let judged = Probe::new();
    let relay = start(
        &database,
        vec![
            SinkSettings { filter: Some("true".to_owned()), ..sink("judged", judged.target()) },
            SinkSettings { envelope: EnvelopeKind::Plain, ..sink("plain", plain.target()) },
        ],
    );
    let string = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let payloads = [
        "null".to_owned(),
        "{}".to_owned(),
        "\"\"".to_owned(),
        " [ 1 , 2 ] ".to_owned(),
        "\"\\u0000 \\ud83d\\ude00 \u{1F600}\"".to_owned(),
        "1e400".to_owned(),
        "{\"a\": 1, \"a\": 2}".to_owned(),
        string(1 << 20),
        deep(5_000),
        deep(10_000),
        string(64 << 20),
    ];
    for (number, payload) in payloads.iter().enumerate() {
        emit_payload(&mut writer, number, payload).await.unwrap();
    }
    emit_many(&mut writer, 1000, 1000, 100).await;
    plain.wait_for(1000 + payloads.len()).await;
    judged.wait_for(1000 + payloads.len() - REFUSED.len()).await;
    until(&mut writer, "select sum(events) = 0 from postrider.backlog").await;
    for (number, payload) in payloads.iter().enumerate() {
        let bodies = bodies.lock().unwrap();
        assert!(bodies[&number] == payload.as_bytes(), "payload {number} was changed on its way");
    }
    let parked: Vec<(String, i32, String, String)> = sqlx::query_as(
        "select s.name, p.type::integer, p.kind, p.reason from postrider.parked p join postrider.sinks s using (sink) order by 2",
    )
    .fetch_all(&mut writer)
    .await
    .unwrap();
    let found: Vec<usize> = parked.iter().map(|(_, number, ..)| usize::try_from(*number).unwrap()).collect();
    assert_eq!(found, REFUSED, "{parked:?}");
    for (sink, _, kind, reason) in &parked {
        assert_eq!((sink.as_str(), kind.as_str()), ("judged", "beyond_jq"), "{reason}");
        let names_its_limit = ["nested deeper than 512 levels", "take 8388608 (8 MiB) at most"];
        assert!(names_its_limit.iter().any(|words| reason.contains(words)), "{reason}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_41_what_is_no_json_never_gets_in() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    for payload in ["", "NaN", "{\"a\": NaN}", "{", "\"\u{1}\"", "'a'", "[1,]"] {
        assert!(emit_payload(&mut writer, 0, payload).await.is_err(), "{payload:?} was taken");
    }
    // Neither a NUL byte nor what is no UTF-8 passes the server's own check.
    for bytes in [vec![b'"', 0, b'"'], vec![b'"', 0xff, 0xfe, b'"']] {
        let refused = sqlx::query("select postrider.emit('0', convert_from($1, 'UTF8')::json)")
            .bind(bytes)
            .execute(&mut writer)
            .await;
        assert!(refused.is_err());
    }
    let large = format!("\"{}\"", "x".repeat(64 << 20));
    let said = emit_payload(&mut writer, 0, &large).await.unwrap_err().to_string();
    assert!(said.contains("over a limit"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_41_random_payloads_are_delivered_or_parked() {
    let seed = Seed::from_env_or_random("fault_41");
    let mut rng = seed.rng();
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    let count = rounds(300, 20_000);
    for number in 0..count {
        let mut payload = String::new();
        generate(&mut rng, 0, &mut payload);
        emit_payload(&mut writer, number, &payload).await.unwrap();
    }
    probe.wait_for(count).await;
    relay.stop().await;
    assert_eq!(probe.count(), count);
}

/// Some JSON text.
fn generate(rng: &mut StdRng, depth: u32, text: &mut String) {
    let kinds = if depth > 8 { 4 } else { 6 };
    match rng.random_range(0..kinds) {
        0 => text.push_str(["null", "true", "false"][rng.random_range(0..3)]),
        1 => text.push_str(&rng.random_range(-1e300..1e300_f64).to_string()),
        2 => text.push_str(&rng.random::<i64>().to_string()),
        3 => {
            let length = [0, 1, 10, 3000, 100_000][rng.random_range(0..5)];
            let some: String = (0..length).map(|_| rng.random::<char>()).filter(|c| *c != '\0').collect();
            text.push_str(&serde_json::to_string(&some).unwrap());
        }
        4 => {
            text.push('[');
            for place in 0..rng.random_range(0..4) {
                text.push_str(if place == 0 { "" } else { " ,\n" });
                generate(rng, depth + 1, text);
            }
            text.push(']');
        }
        _ => {
            text.push('{');
            for place in 0..rng.random_range(0..4) {
                text.push_str(if place == 0 { "" } else { "," });
                write!(text, "\"k{}\":", rng.random_range(0..3)).unwrap();
                generate(rng, depth + 1, text);
            }
            text.push('}');
        }
    }
}
