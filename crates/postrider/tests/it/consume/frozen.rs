//! A client that takes nothing of what it is sent.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;

use super::subscribe;
use crate::support::{PATIENCE, database, run};

/// No timeout of the server's counts while it writes to a client, but that of the socket.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_freezes_while_it_is_sent_rows_loses_its_lane() {
    let database = database().await;
    let (mut connection, mut frozen) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    subscribe(&mut connection, "c").await;
    // More than all buffers in between take, a socket's may have 36 MB; and one batch, which goes by the compressed size.
    run(
        &mut connection,
        "select postrider.emit('large', to_json(repeat('x', 1000000)), key => 'one') from generate_series(1, 60)",
    )
    .await;
    let mut rows =
        pin!(sqlx::query("select * from postrider.next_batch('c', 100, '5 seconds')").fetch(&mut frozen));
    assert!(rows.next().await.unwrap().is_ok());
    let is_free = "select exists (select from postrider.next_batch('c', 1))";
    assert!(!sqlx::query_scalar::<_, bool>(is_free).fetch_one(&mut connection).await.unwrap());
    let freed = async {
        while !sqlx::query_scalar::<_, bool>(is_free).fetch_one(&mut connection).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE / 4, freed).await.expect("the lane is never free");
}
