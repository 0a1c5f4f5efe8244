//! Jobs that wait for their key: what a claim costs when many do, and that none waits for ever.

use sqlx::Connection as _;

use super::bloat::cost;
use super::{claim, finish, kinds, one, work_off};
use crate::support::{database, run};

/// A claim looks at what has changed, not at all that waits.
#[tokio::test]
async fn a_claim_costs_the_same_however_many_keys_wait() {
    async fn with(keys: i32) -> i64 {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        sqlx::query("select postrider.enqueue('a', '{}', key => 'key ' || n) from generate_series(1, $1) n, generate_series(1, 2)")
            .bind(keys)
            .execute(&mut connection)
            .await
            .unwrap();
        // The first of each key is on its way, the second waits for it.
        let mut claimed = 0;
        while claimed < keys {
            claimed += i32::try_from(claim(&mut connection, 1000).await.len()).unwrap();
        }
        assert_eq!(
            one::<i64>(&mut connection, "select count(*) from postrider.job_waiting where state = 'key'")
                .await,
            i64::from(keys)
        );
        run(&mut connection, "vacuum analyze postrider.job_waiting, postrider.job_turns").await;
        cost(&mut connection).await
    }
    let (few, many) = (with(50).await, with(3000).await);
    assert!(many <= few * 2 + 50, "a claim touched {few} pages with 50 keys, and {many} with 3000");
}

/// Whoever enqueues does not see that the key is just being given back, and whoever gives it back does not see the job: somebody must look again.
#[tokio::test]
async fn a_job_that_comes_while_its_key_is_given_back_does_not_wait_for_ever() {
    let database = database().await;
    let (mut connection, mut finisher, mut producer) = (
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
    );
    run(&mut producer, "select postrider.enqueue('first', '{}', key => 'k')").await;
    kinds(&mut connection, 10).await;
    let first = claim(&mut connection, 10).await[0].0;
    let mut finishing = finisher.begin().await.unwrap();
    finish(&mut finishing, first).await.unwrap();
    // It comes, and is looked at, while the key is not free yet.
    run(&mut producer, "select postrider.enqueue('second', '{}', key => 'k')").await;
    assert!(kinds(&mut connection, 10).await.is_empty());
    assert!(kinds(&mut connection, 10).await.is_empty());
    finishing.commit().await.unwrap();
    assert!(kinds(&mut connection, 10).await.is_empty());
    assert_eq!(kinds(&mut connection, 10).await, ["second"]);
}

/// More jobs of one key than a claim looks at do not keep another key waiting for long.
#[tokio::test]
async fn a_crowded_key_does_not_hold_up_the_others() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.enqueue('crowd', '{}', key => 'crowded') from generate_series(1, 5000);
         select postrider.enqueue('other', '{}', key => 'other')",
    )
    .await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(kinds(&mut connection, 10).await);
    }
    assert_eq!(seen, ["crowd", "other"]);
}

/// The first of a key that has its time holds the others back, and none of them is forgotten when it has come.
#[tokio::test]
async fn the_first_of_a_key_is_waited_for() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.enqueue('first', '{}', key => 'k', run_at => now() + interval '300 milliseconds');
         select postrider.enqueue('second', '{}', key => 'k')",
    )
    .await;
    assert!(kinds(&mut connection, 10).await.is_empty());
    let due: Option<f64> = one(&mut connection, "select postrider.next_job_at(array['default'])").await;
    assert!(due.is_some_and(|seconds| seconds < 0.4), "a worker would sleep for longer: {due:?}");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(work_off(&mut connection).await);
    }
    assert_eq!(seen, ["first", "second"]);
}
