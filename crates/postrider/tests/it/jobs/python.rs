//! The worker in Python that docs/jobs.md shows: it enqueues, claims and finishes with plain SQL.

use std::process::Stdio;

use super::one;
use crate::support::{database, run};

#[tokio::test]
async fn the_python_example_enqueues_and_works() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table greetings (who text)").await;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/jobs.py");
    for words in [&["enqueue", "ada"][..], &["enqueue", "boom"], &["work", "--once"]] {
        let output = std::process::Command::new("python3")
            .arg(example)
            .args(words)
            .env("DATABASE_URL", database.url())
            .env("PYTHONPATH", postrider_testkit::cache().join("pip"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(one::<String>(&mut connection, "select string_agg(who, ',') from greetings").await, "ada");
    let waits: (String, i16) = sqlx::query_as("select last_error, attempt from postrider.job_waiting")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(waits, ("nobody is called boom".to_owned(), 2));
}
