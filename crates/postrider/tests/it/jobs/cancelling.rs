//! Cancelled jobs: who is told, and what they cost those that are claimed.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{claim, finish, one};
use crate::support::{database, run};

async fn cancel(connection: &mut PgConnection, id: i64) -> Option<String> {
    sqlx::query_scalar("select postrider.cancel_job($1)").bind(id).fetch_one(connection).await.unwrap()
}

/// Where no results are kept only claims and cursors tell: the job's row stays for a while.
#[tokio::test]
async fn a_job_that_is_done_cannot_be_cancelled_though_no_results_are_kept() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.set_queue('default', keep_results => '0');
         select postrider.enqueue('a', '{}') from generate_series(1, 3)",
    )
    .await;
    let number = claim(&mut connection, 2).await[0].0;
    sqlx::query("select postrider.finish_jobs($1, done => array[1])")
        .bind(number)
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(cancel(&mut connection, 1).await, None, "it is done, its claim is open");
    assert_eq!(cancel(&mut connection, 2).await.as_deref(), Some("told"), "it runs");
    assert_eq!(cancel(&mut connection, 3).await.as_deref(), Some("told"), "it is ready");
    finish(&mut connection, number).await.unwrap();
    assert_eq!(cancel(&mut connection, 2).await, None, "its claim is closed");
    assert_eq!(claim(&mut connection, 10).await, [], "the third is cancelled");
    assert_eq!(cancel(&mut connection, 3).await, None);
    assert_eq!(
        one::<i64>(&mut connection, "select count(*) from postrider.job_cancelled where id = 1").await,
        0
    );
}

/// One whose slot had to be emptied while it ran is told, until it has ended.
#[tokio::test]
async fn a_job_that_was_set_aside_can_be_cancelled_until_it_has_ended() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.set_queue('default', keep_results => '0'); select postrider.enqueue('a', '{}')",
    )
    .await;
    let number = claim(&mut connection, 1).await[0].0;
    run(&mut connection, "select postrider.tend_jobs(1, 1 << 20) from generate_series(1, 3)").await;
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_kept").await, 1);
    assert_eq!(cancel(&mut connection, 1).await.as_deref(), Some("told"));
    finish(&mut connection, number).await.unwrap();
    assert_eq!(cancel(&mut connection, 1).await, None);
}

/// The fastest of a few claims of a thousand jobs.
async fn fastest_claim(connection: &mut PgConnection) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        run(connection, "select postrider.enqueue('a', '{}') from generate_series(1, 1000)").await;
        let began = Instant::now();
        assert_eq!(claim(connection, 1000).await.len(), 1000);
        fastest = fastest.min(began.elapsed());
    }
    fastest
}

/// A claim holds its queue's lock: to compare each of its jobs with each cancelled one took 200 ms at 18,000 of them.
#[tokio::test]
async fn a_claim_costs_the_same_however_many_jobs_are_cancelled() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let before = fastest_claim(&mut connection).await;
    run(
        &mut connection,
        "insert into postrider.job_cancelled select 1000000 + n from generate_series(1, 50000) n",
    )
    .await;
    // What each of them costs is paid each time, what the machine does beside only now and then.
    let mut after = Duration::MAX;
    for _ in 0..3 {
        after = after.min(fastest_claim(&mut connection).await);
        if after < before * 4 + Duration::from_millis(50) {
            return;
        }
    }
    panic!("{before:?} without, {after:?} with cancelled jobs");
}
