//! The rules of taking lanes over.

use postrider::log::lease::{self, Silence};
use postrider::log::progress::Tenure;
use postrider::log::share;
use uuid::Uuid;

use super::Hand;
use crate::faults::until;
use crate::support::{PATIENCE, database, emit, run};

/// The holder is late, its settling is on its way, and the heir takes its lanes at that moment. The holder is told "settled", and so it is.
#[tokio::test]
async fn what_is_being_settled_when_lanes_are_taken_counts() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut holder = Hand::open(&database).await;
    assert_eq!(holder.tenure.epoch, 2);
    emit(&mut writer, "one", "k").await;
    assert_eq!(holder.look().await, ["one"]);
    run(&mut holder.connection, "begin; set local idle_in_transaction_session_timeout = 0").await;
    holder.settle().await;
    run(&mut writer, "update postrider.readers set expires_at = '-infinity'").await;
    let (mut heir, ()) = tokio::join!(Hand::open(&database), async {
        // It waits, or it has not waited.
        until(
            &mut writer,
            "select exists (select from pg_locks where not granted and relation = 'postrider.progress'::regclass
                    and database = (select oid from pg_database where datname = current_database()))
                or (select max(epoch) > 2 from postrider.leases)",
        )
        .await;
        run(&mut holder.connection, "commit").await;
    });
    assert_eq!(heir.cursors.len(), 16);
    assert_eq!(heir.look_until_quiet().await, [""; 0], "settled, and delivered again");
}

/// For the lock of the sink's leases, which the heir has.
const HOLDER_WAITS: &str = "select exists (select from pg_stat_activity
    where datname = current_database() and query like '%postrider.sinks%for update%' and wait_event_type = 'Lock')";
const HEIR_WAITS: &str =
    "select exists (select from pg_locks where not granted and relation = 'postrider.progress'::regclass
    and database = (select oid from pg_database where datname = current_database()))";

/// The holder was silent for longer than its lease and comes back while the heir takes its lanes: it waits for him, and finds them gone.
/// Where it plans without the lock, as it does otherwise, both have them.
#[tokio::test]
async fn who_was_silent_waits_for_who_takes_its_lanes() {
    for (silence, goes_on) in [(Silence::Perhaps, false), (Silence::No, true)] {
        let database = database().await;
        let mut writer = database.connect().await.unwrap();
        let mut settler = database.connect().await.unwrap();
        let mut holder = Hand::open(&database).await;
        let reader: Uuid =
            sqlx::query_scalar("select reader from postrider.readers").fetch_one(&mut writer).await.unwrap();
        run(&mut writer, "update postrider.readers set expires_at = '-infinity'").await;
        // Somebody's settling makes the moment long.
        run(&mut settler, "begin; lock table postrider.progress in row exclusive mode").await;
        let (heir, ()) = tokio::join!(Hand::open(&database), async {
            until(&mut writer, HEIR_WAITS).await;
            let (name, sink) = (holder.tenure.name.clone(), holder.tenure.sink);
            lease::heartbeat(&mut holder.connection, reader, &name, sink, PATIENCE).await.unwrap();
            let all: Vec<i16> = (0..16).collect();
            let balancing = lease::balance_by(
                &mut holder.connection,
                reader,
                &holder.tenure,
                &all,
                // All of them have something in flight.
                &all,
                share::decide,
                silence,
            );
            let (change, _) = if goes_on {
                let balanced = balancing.await;
                run(&mut settler, "rollback").await;
                balanced
            } else {
                let (balanced, ()) = tokio::join!(balancing, async {
                    until(&mut writer, HOLDER_WAITS).await;
                    run(&mut settler, "rollback").await;
                });
                balanced
            }
            .unwrap();
            assert_eq!(change.is_none(), goes_on, "{silence:?}: {change:?}");
            if let Some((_, cursors)) = change {
                assert!(cursors.is_empty(), "they are the heir's: {:?}", cursors.keys());
            }
        });
        assert_eq!(heir.cursors.len(), 16, "{silence:?}");
    }
}

/// Its own lanes under an epoch that it does not know: what it has in memory is not what is stored.
#[tokio::test]
async fn lanes_of_another_epoch_are_let_go_of() {
    let database = database().await;
    let mut hand = Hand::open(&database).await;
    let reader: Uuid = sqlx::query_scalar("select reader from postrider.readers")
        .fetch_one(&mut hand.connection)
        .await
        .unwrap();
    let all: Vec<i16> = (0..16).collect();
    let (change, _) = lease::balance(&mut hand.connection, reader, &hand.tenure, &all, &[]).await.unwrap();
    assert!(change.is_none(), "{change:?}");
    let older = Tenure { epoch: hand.tenure.epoch - 1, ..hand.tenure.clone() };
    let (change, _) = lease::balance(&mut hand.connection, reader, &older, &all, &[]).await.unwrap();
    let (newer, held) = change.expect("it goes on from memory");
    assert!(held.is_empty(), "{held:?}");
    let (change, _) = lease::balance(&mut hand.connection, reader, &newer, &[], &[]).await.unwrap();
    assert_eq!(change.expect("they are free").1.len(), 16);
}
