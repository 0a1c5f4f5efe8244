//! The worker in Python that docs/jobs.md shows: it enqueues, claims and finishes with plain SQL.

use std::process::{Command, Output, Stdio};

use postrider_testkit::Database;

use super::{one, until};
use crate::support::{database, run};

fn example(database: &Database, words: &[&str]) -> Command {
    let mut python = Command::new("python3");
    python
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/jobs.py"))
        .args(words)
        .env("DATABASE_URL", database.url())
        .env("PYTHONPATH", postrider_testkit::cache().join("pip"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    python
}

#[track_caller]
fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[tokio::test]
async fn the_python_example_enqueues_and_works() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table greetings (who text)").await;
    for words in [&["enqueue", "ada"][..], &["enqueue", "boom"], &["work", "--once"]] {
        said(&example(&database, words).output().unwrap());
    }
    assert_eq!(one::<String>(&mut connection, "select string_agg(who, ',') from greetings").await, "ada");
    let waits: (String, i16) = sqlx::query_as("select last_error, attempt from postrider.job_waiting")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(waits, ("nobody is called boom".to_owned(), 2));
}

/// It is too late with a job: its effect is rolled back, and it goes on with others.
#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_survives_its_lease() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut other = database.connect().await.unwrap();
    run(&mut connection, "create table greetings (who text)").await;
    run(&mut connection, r#"select postrider.enqueue('greet', '{"who": "ada"}')"#).await;
    run(&mut other, "begin; lock table greetings").await;
    let late = example(&database, &["work", "--once"]).spawn().unwrap();
    until(
        &mut connection,
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
    )
    .await;
    run(&mut connection, "update postrider.job_claims set expires_at = now() - interval '1 second'").await;
    assert_eq!(one::<i32>(&mut connection, "select postrider.reap_jobs()").await, 1);
    run(&mut other, "commit").await;
    let late = tokio::task::spawn_blocking(|| late.wait_with_output().unwrap()).await.unwrap();
    assert!(said(&late).contains("is not held any more"), "{late:?}");
    said(&example(&database, &["work", "--once"]).output().unwrap());
    let greetings: Vec<String> =
        sqlx::query_scalar("select who from greetings").fetch_all(&mut connection).await.unwrap();
    assert_eq!(greetings, ["ada"]);
    assert_eq!(one::<i16>(&mut connection, "select attempt from postrider.job_results").await, 2);
}
