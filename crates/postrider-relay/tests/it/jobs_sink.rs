//! Events that become jobs: by rule, each once, whatever is sent again.

use postrider::log::Record;
use postrider::schema;
use postrider_relay::sinks::jobs::{JobsConfig, JobsSink};
use postrider_relay::{EventId, Message, Outcome, RefusalKind, Report, Sink};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::database;

fn event(event_type: &str, key: &str, payload: &str) -> Record {
    Record {
        seq: 1,
        lane: 0,
        id: Uuid::now_v7(),
        source_id: None,
        r#type: event_type.to_owned(),
        entity: None,
        key: Some(key.to_owned()),
        tenant: None,
        payload: payload.to_owned(),
        headers: None,
        created_at: OffsetDateTime::UNIX_EPOCH,
    }
}

async fn deliver(sink: &mut JobsSink, records: &[Record]) -> Report {
    let batch: Vec<Message<'_>> = records
        .iter()
        .map(|record| Message {
            record,
            id: EventId::of(record),
            destination: "default".to_owned(),
            content_type: "application/json",
            headers: Vec::new(),
            body: record.payload.clone().into_bytes(),
        })
        .collect();
    sink.deliver(&batch).await
}

#[tokio::test]
async fn an_event_becomes_one_job_by_the_rule_that_fits_best() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    schema::check_version(&mut connection).await.unwrap();
    let config: JobsConfig = serde_json::from_value(json!({
        "url": database.url(),
        "rules": { "order.*": { "queue": "orders", "priority": 3 }, "order.paid": { "kind": "invoice.make", "keyed": true } },
    }))
    .unwrap();
    let mut sink = JobsSink::open(config).await.unwrap();
    let events = [
        event("order.paid", "7", "{\"n\":  1}"),
        event("order.made", "7", "2"),
        event("mail.sent", "7", "3"),
    ];
    // Twice, as after a crash between delivering and settling.
    for _ in 0..2 {
        let report = deliver(&mut sink, &events).await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        assert_eq!(report.outcomes, vec![Outcome::Delivered; 3]);
    }
    let jobs: Vec<(String, String, i16, String, Option<String>)> = sqlx::query_as(
        "select kind, queue::text, priority, payload::text, key::text from postrider.job_waiting
         union all select kind, queue::text, priority, payload::text, key::text from postrider.jobs order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let job = |kind: &str, queue: &str, priority, payload: &str, key: Option<&str>| {
        (kind.to_owned(), queue.to_owned(), priority, payload.to_owned(), key.map(str::to_owned))
    };
    assert_eq!(
        jobs,
        [
            job("invoice.make", "default", 0, "{\"n\":  1}", Some("7")),
            job("order.made", "orders", 3, "2", None)
        ]
    );
    // Done, and sent again: it stays once.
    sqlx::raw_sql("select postrider.finish_jobs(c.claim) from postrider.claim_jobs('orders') c")
        .execute(&mut connection)
        .await
        .unwrap();
    deliver(&mut sink, &events[1..2]).await;
    let again: i64 = sqlx::query_scalar("select count(*) from postrider.claim_jobs('orders')")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(again, 0);
}

#[tokio::test]
async fn what_the_queue_refuses_is_refused_alone() {
    let database = database().await;
    let mut sink = JobsSink::open(JobsConfig::new(database.url())).await.unwrap();
    let events = [event("a", "1", "1"), event("", "2", "2"), event("b", "2", "3"), event("b", "3", "4")];
    let report = deliver(&mut sink, &events).await;
    assert_eq!(report.outcomes[0], Outcome::Delivered);
    assert!(
        matches!(&report.outcomes[1], Outcome::Refused(refusal) if refusal.kind == RefusalKind::Rejected),
        "{report:?}"
    );
    // Behind it in its key, and in another one.
    assert_eq!(report.outcomes[2..], [Outcome::NotSent, Outcome::Delivered]);
}

/// The server takes no array with such a payload in it. Each event becomes a job all the same, by all that the rule says, and once.
#[tokio::test]
async fn an_event_with_a_zero_character_becomes_a_job_too() {
    let database = database().await;
    let config: JobsConfig = serde_json::from_value(json!({
        "url": database.url(),
        "rules": { "order.*": { "queue": "orders", "priority": 3, "max_attempts": 7, "keyed": true } },
    }))
    .unwrap();
    let mut sink = JobsSink::open(config).await.unwrap();
    let payload = r#"{"note": "a\u0000b"}"#;
    let events =
        [event("order.made", "7", payload), event("mail.sent", "7", "1"), event("order.paid", "8", "2")];
    // Twice, as after a crash between delivering and settling.
    for _ in 0..2 {
        let report = deliver(&mut sink, &events).await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        assert_eq!(report.outcomes, vec![Outcome::Delivered; 3]);
    }
    let mut connection = database.connect().await.unwrap();
    let jobs: Vec<(String, String, i16, i16, String, String)> = sqlx::query_as(
        "select kind, queue::text, priority, max_attempts, key::text, payload::text from postrider.job_waiting order by id",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let job = |kind: &str, key: &str, payload: &str| {
        (kind.to_owned(), "orders".to_owned(), 3, 7, key.to_owned(), payload.to_owned())
    };
    assert_eq!(jobs, [job("order.made", "7", payload), job("order.paid", "8", "2")]);
    let remembered: i64 = sqlx::query_scalar(
        "select count(*) from postrider.job_unique where until between now() + interval '13 days' and now() + interval '14 days'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(remembered, 2);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_unavailable() {
    let config = JobsConfig::new("postgres://127.0.0.1:1/nowhere");
    assert!(JobsSink::open(config).await.is_err());
}
