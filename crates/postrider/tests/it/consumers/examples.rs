//! The examples, run as they are.

use std::path::Path;
use std::process::Command;

use futures_util::future::join_all;
use lapin::{BasicProperties, options::BasicPublishOptions};

use super::far::{Far, Letter};
use super::{kafka, nats, payments, rabbitmq, redis, until};
use crate::support::database;

#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../examples/automations.rs"]
mod automations;
#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../examples/consumer.rs"]
mod totals;

const TOTALS: &str = "create table totals as select 0::bigint as payments, 0::bigint as amount";

async fn keeps_totals<F: Far>(far: &F) {
    let database = database().await;
    let pool = database.pool(12).await.unwrap();
    sqlx::raw_sql(TOTALS).execute(&pool).await.unwrap();
    let place = far.url();
    let (url, place) = place.split_once(' ').unwrap();
    super::far::prepare(far, "totals").await;
    let letters = payments(100, 10);
    far.publish(&letters).await;
    far.publish(&letters[..20]).await;
    let stop = until("all are booked", async || {
        let sums: (i64, i64) =
            sqlx::query_as("select payments, amount from totals").fetch_one(&pool).await.unwrap();
        sums == (100, 5050) && far.left("totals").await == 0
    });
    totals::keep_totals(pool.clone(), [far.kind(), url, place], stop).await.unwrap();
    let sums: (i64, i64) =
        sqlx::query_as("select payments, amount from totals").fetch_one(&pool).await.unwrap();
    assert_eq!(sums, (100, 5050));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_example_keeps_an_exact_sum_behind_every_broker() {
    Box::pin(keeps_totals(&redis::tested().await)).await;
    Box::pin(keeps_totals(&nats::tested().await)).await;
    Box::pin(keeps_totals(&rabbitmq::tested().await)).await;
    Box::pin(keeps_totals(&kafka::tested().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_consumer_keeps_an_exact_sum_behind_rabbitmq() {
    let tested = rabbitmq::tested().await;
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    crate::support::run(&mut connection, TOTALS).await;
    let place = tested.url();
    let (url, exchange) =
        place.split_once(' ').map(|(url, exchange)| (url.to_owned(), exchange.to_owned())).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/rabbitmq_consumer.py");
    let cache = postrider_testkit::cache();
    let packages = std::env::join_paths([cache.join("pip"), cache.join("rabbitmq/pip")]).unwrap();
    let database_url = database.url();
    let run = move || {
        let mut python = Command::new("/usr/bin/python3");
        python.arg(&script).args([exchange.as_str(), "--once"]).env("PYTHONPATH", &packages);
        let output = python.env("DATABASE_URL", &database_url).env("AMQP_URL", &url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // Once, to make its queue.
    let run = tokio::task::spawn_blocking(move || {
        run();
        run
    });
    let run = run.await.unwrap();
    let letters = payments(50, 10);
    tested.publish(&letters).await;
    tested.publish(&letters[..10]).await;
    let no_amount = String::from_utf8(letters[0].body.clone()).unwrap();
    let no_amount = no_amount.replace(r#""amount":1"#, r#""amount":"many""#).replace("event-1", "event-99");
    for body in ["no event".to_owned(), no_amount] {
        tested.publish(&[Letter { body: body.into_bytes(), ..letters[0].clone() }]).await;
    }
    tokio::task::spawn_blocking(run).await.unwrap();
    let sums: (i64, i64) =
        sqlx::query_as("select payments, amount from totals").fetch_one(&mut connection).await.unwrap();
    assert_eq!(sums, (50, 1275));
    assert_eq!(tested.left("python-totals").await, 0);
    assert_eq!(tested.left("python-totals.dead").await, 2, "what it cannot take is with the dead letters");
}

/// As a poller writes it.
fn change(number: usize, r#type: &str, initiator: &str) -> (String, Vec<u8>) {
    let id = Letter::id(number);
    let body = serde_json::json!({
        "timestamp": 1_706_547_200, "publisher": "event-stream", "version": "1.0", "source": "poller", "event_id": id, "event_type": r#type,
        "entity_id": format!("item-{}", number % 5), "payload": { "data": { "number": number }, "previous_attributes": {} },
        "workspace_id": "w", "initiator_type": initiator,
    });
    (id, body.to_string().into_bytes())
}

/// In place of the job queue, where the schema has none.
const NO_JOBS: &str = "
    do $$ begin
        if not exists (select from pg_proc where pronamespace = 'postrider'::regnamespace and proname = 'enqueue') then
            create table postrider.jobs (kind text, payload json, key text);
            create table postrider.job_waiting (kind text);
            create function postrider.enqueue(kind text, payload json, key text) returns bigint language sql as
                'insert into postrider.jobs values (kind, payload, key) returning 1::bigint';
        end if;
    end $$";

const JOBS: &str = "select count(*) from (
    select kind from postrider.jobs union all select kind from postrider.job_waiting) jobs where kind = 'automation.run'";

#[tokio::test(flavor = "multi_thread")]
async fn the_automations_example_makes_one_job_of_each_change() {
    let tested = rabbitmq::tested().await;
    let database = database().await;
    let pool = database.pool(12).await.unwrap();
    sqlx::raw_sql(automations::TABLES).execute(&pool).await.unwrap();
    sqlx::raw_sql(NO_JOBS).execute(&pool).await.unwrap();
    let set_up = "insert into automations (trigger) values ('workitem.updated'), ('workitem.updated'), ('workitem.created')";
    sqlx::raw_sql(set_up).execute(&pool).await.unwrap();
    let place = tested.url();
    let (url, exchange) = place.split_once(' ').unwrap();
    super::far::prepare(&tested, "automations").await;
    let purge =
        tested.channel.queue_purge("automations".into(), lapin::options::QueuePurgeOptions::default());
    purge.await.unwrap();
    let mut changes: Vec<_> = (0..30).map(|number| change(number, "workitem.updated", "USER")).collect();
    changes.extend((30..40).map(|number| change(number, "workitem.created", "USER")));
    changes.extend((40..45).map(|number| change(number, "workitem.updated", "AUTOMATION")));
    changes.extend((45..50).map(|number| change(number, "comment.created", "USER")));
    changes.extend_from_within(0..10);
    let publishing = changes.iter().map(|(id, body)| {
        let properties = BasicProperties::default()
            .with_message_id(id.as_str().into())
            .with_content_type("application/json".into());
        let options = BasicPublishOptions::default();
        tested.channel.basic_publish(exchange.into(), "".into(), options, body, properties)
    });
    for sent in join_all(publishing).await {
        sent.unwrap().await.unwrap();
    }
    let stop = until("there is a job for each", async || {
        let jobs: i64 = sqlx::query_scalar(JOBS).fetch_one(&pool).await.unwrap();
        jobs >= 70 && tested.left("automations").await == 0
    });
    automations::run(pool.clone(), url, exchange, stop).await.unwrap();
    let jobs: i64 = sqlx::query_scalar(JOBS).fetch_one(&pool).await.unwrap();
    let runs: i64 =
        sqlx::query_scalar("select count(*) from automation_runs").fetch_one(&pool).await.unwrap();
    assert_eq!((jobs, runs), (70, 70), "two for each of thirty changes, one for each of ten");
}
