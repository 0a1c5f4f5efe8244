//! The rules of taking lanes over.

use postrider::log::lease;
use postrider::log::progress::Tenure;
use uuid::Uuid;

use super::Hand;
use crate::faults::until;
use crate::support::{database, emit, run};

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
