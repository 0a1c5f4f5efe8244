//! The examples, run as they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use postrider_testkit::Database;
use sqlx::PgPool;

use crate::faults::until;
use crate::support::{PATIENCE, database, run};

#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../examples/subscription.rs"]
mod totals;

#[tokio::test]
async fn the_subscription_example_keeps_an_exact_sum() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create table totals as select 0::bigint as orders, 0::bigint as amount;
         select count(postrider.emit('order.paid', json_build_object('amount', i), key => (i % 10)::text)) from generate_series(1, 100) i",
    )
    .await;
    let done = until(&mut connection, "select orders = 100 and amount = 5050 from totals");
    let pool = PgPool::connect(&database.url()).await.unwrap();
    tokio::time::timeout(PATIENCE, totals::keep_totals(pool, done)).await.unwrap().unwrap();
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python")
}

/// Runs one of the Python examples with the packages that `./dev setup` has installed.
fn python(database: &Database, script: &str, arguments: &[&str]) -> String {
    let output = Command::new("/usr/bin/python3")
        .arg(examples().join(script))
        .args(arguments)
        .env("PYTHONPATH", postrider_testkit::cache().join("pip"))
        .env("DATABASE_URL", database.url())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {out}{err}");
    out.into_owned()
}

#[tokio::test]
async fn the_python_examples_produce_and_consume_exactly_once() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table orders (id bigserial primary key, cents bigint not null); create table invoices (event_id uuid, cents bigint)").await;
    let ended = tokio::task::spawn_blocking(move || {
        python(&database, "next_batch.py", &["--once"]);
        python(&database, "producer.py", &["40"]);
        python(&database, "next_batch.py", &["--once"]);
        let first = python(&database, "first_time.py", &["message-1", "1250"]);
        let again = python(&database, "first_time.py", &["message-1", "1250"]);
        assert_eq!((first.trim(), again.trim()), ("done", "had it before"));
        database
    });
    let _database = ended.await.unwrap();
    let (invoices, sum, orders): (i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from invoices), (select sum(cents)::bigint from invoices), (select sum(cents)::bigint from orders)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    // Forty by the log, one by the message.
    assert_eq!((invoices, sum), (41, orders + 1250));
}
