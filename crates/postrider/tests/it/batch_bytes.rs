//! Batches are bounded by bytes, and nothing is lost or reordered where a page is cut.

use postrider::log::{BatchBytes, ReaderOptions};
use postrider_testkit::Seed;
use rand::RngExt as _;
use sqlx::PgConnection;

use crate::support::{database, next, open, reading};

const BUDGET: usize = 100_000;

async fn emit_sized(connection: &mut PgConnection, number: i64, key: i64, bytes: i32) {
    sqlx::query("select postrider.emit('sized', json_build_object('number', $1, 'fill', repeat('x', $3)), key => $2::text)")
        .bind(number)
        .bind(key)
        .bind(bytes)
        .execute(connection)
        .await
        .unwrap();
}

/// Sizes change from small to large and back, in new and in late events; every page is cut somewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_keeps_to_its_bytes_and_loses_nothing() {
    let database = database().await;
    let mut random = Seed::from_env_or_random("batch bytes").rng();
    let mut writer = database.connect().await.unwrap();
    let mut slow = database.connect().await.unwrap();
    let mut reader =
        open(&database, ReaderOptions { batch_bytes: BatchBytes::new(BUDGET), ..reading("test") }).await;
    let mut number = 0;
    let mut expected = 0;
    let (mut seen, mut largest) = (Vec::new(), 0);
    for round in 0..6 {
        // A transaction that stays open while others pass it: its events come late, in a set larger than the budget.
        sqlx::raw_sql("begin").execute(&mut slow).await.unwrap();
        for count in 0..60 {
            let bytes = if (round + count / 20) % 2 == 0 { 100 } else { random.random_range(1_000..30_000) };
            let writer = if count % 3 == 0 { &mut slow } else { &mut writer };
            emit_sized(writer, number, if count % 3 == 0 { 1000 + number % 7 } else { number % 7 }, bytes)
                .await;
            number += 1;
        }
        let early = 40;
        let mut got = 0;
        while got < early {
            let batch = next(&mut reader).await;
            got += batch.len();
            expected += batch.len();
            take(&batch, &mut seen, &mut largest);
            reader.settle(&batch).await.unwrap();
        }
        sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
        while got < 60 {
            let batch = next(&mut reader).await;
            got += batch.len();
            expected += batch.len();
            take(&batch, &mut seen, &mut largest);
            reader.settle(&batch).await.unwrap();
        }
    }
    assert_eq!(expected, seen.len());
    let mut numbers: Vec<i64> = seen.iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..number).collect::<Vec<_>>(), "each once, none lost");
    for key in seen.iter().map(|(key, _)| key) {
        let of_key: Vec<i64> =
            seen.iter().filter(|(other, _)| other == key).map(|(_, number)| *number).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
    assert!(largest <= BUDGET, "a batch of {largest} bytes");
}

fn take(batch: &postrider::log::Batch, seen: &mut Vec<(String, i64)>, largest: &mut usize) {
    let bytes: usize = batch.records().map(postrider::log::Record::size).sum();
    *largest = (*largest).max(bytes);
    for record in batch.records() {
        let payload: serde_json::Value = serde_json::from_str(&record.payload).unwrap();
        seen.push((record.key.clone().unwrap(), payload["number"].as_i64().unwrap()));
    }
}

/// One event larger than the budget comes alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_beyond_the_budget_comes_alone() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    for number in 0..10 {
        emit_sized(&mut writer, number, number, 300_000).await;
    }
    let mut reader =
        open(&database, ReaderOptions { batch_bytes: BatchBytes::new(BUDGET), ..reading("test") }).await;
    let mut seen = Vec::new();
    while seen.len() < 10 {
        let batch = next(&mut reader).await;
        assert_eq!(batch.len(), 1);
        take(&batch, &mut seen, &mut 0);
        reader.settle(&batch).await.unwrap();
    }
}
