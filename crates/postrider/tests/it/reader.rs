//! The reader as its users see it.

use crate::support::{database, emit, next, open, read_types, reading, run};

#[tokio::test]
async fn reads_what_was_committed_and_nothing_else() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    run(&mut writer, "begin").await;
    emit(&mut writer, "taken.back", "k").await;
    run(&mut writer, "rollback").await;
    emit(&mut writer, "first", "k").await;
    emit(&mut writer, "second", "k").await;

    let mut reader = open(&database, reading("test")).await;
    assert_eq!(read_types(&mut reader, 2).await, ["first", "second"]);
    reader.close().await.unwrap();

    emit(&mut writer, "third", "k").await;
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(read_types(&mut reader, 1).await, ["third"]);
}

#[tokio::test]
async fn a_sleeping_reader_is_woken() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(reader.silence(), None);
    // Asleep once the ticket can be seen; only then is the event emitted.
    let (batch, ()) = tokio::join!(next(&mut reader), async {
        while sqlx::query_scalar::<_, bool>(
            "select coalesce(pg_sequence_last_value('postrider.armed'), 0) = 0",
        )
        .fetch_one(&mut writer)
        .await
        .unwrap()
        {}
        emit(&mut writer, "wake.up", "k").await;
    });
    assert_eq!(batch.len(), 1);
}
