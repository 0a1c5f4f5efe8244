//! Jobs that may have cost a worker its life, and their neighbours.

use super::{claim, one};
use crate::support::{database, run};

/// A job that has cost two workers their life is handed out alone.
#[tokio::test]
async fn a_job_that_kills_its_worker_is_set_apart_from_its_neighbours() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 5)").await;
    for _ in 0..2 {
        claim(&mut connection, 10).await;
        claim(&mut connection, 10).await;
        run(&mut connection, "update postrider.job_claims set expires_at = now() - interval '1 second'; select postrider.reap_jobs()").await;
    }
    claim(&mut connection, 10).await;
    for _ in 0..5 {
        assert_eq!(claim(&mut connection, 10).await.len(), 1);
    }
}

/// With two attempts the second loss is the last one, and comes too late to set anybody apart.
#[tokio::test]
async fn neighbours_of_a_crash_are_set_apart_before_their_last_attempt() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let crash = "update postrider.job_claims set expires_at = now() - interval '1 second'; select postrider.reap_jobs()";
    run(&mut connection, "select postrider.enqueue('a', '{}', max_attempts => 2) from generate_series(1, 3)")
        .await;
    assert_eq!(claim(&mut connection, 10).await.len(), 3);
    run(&mut connection, crash).await;
    // Moved by one claim, brought by the next.
    assert_eq!(claim(&mut connection, 10).await, []);
    let culprit = claim(&mut connection, 10).await;
    assert_eq!(culprit.len(), 1);
    run(&mut connection, crash).await;
    let dead = "select array_agg(id) from postrider.job_waiting where state = 'dead'";
    assert_eq!(one::<Vec<i64>>(&mut connection, dead).await, [culprit[0].1]);
    for _ in 0..2 {
        assert_eq!(claim(&mut connection, 10).await.len(), 1);
    }
}
