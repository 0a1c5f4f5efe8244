//! Batches are bounded by bytes, and nothing is lost or reordered where a page is cut.

use postrider::log::{BatchBytes, Reader, ReaderOptions};
use postrider_testkit::{Direction, Proxy, Seed};
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
            let bytes = match random.random_range(0..20) {
                // Larger than a batch: read alone.
                0 => random.random_range(110_000..200_000),
                _ if (round + count / 20) % 2 == 0 => 100,
                _ => random.random_range(1_000..30_000),
            };
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
    if batch.len() > 1 {
        *largest = (*largest).max(bytes);
    }
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

/// What would find no room is not asked for: over sixteen lanes, reading one event of each to keep one would carry each many times.
#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_is_not_carried() {
    const EVENTS: i64 = 48;
    const BYTES: i32 = 1_000_000;
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    for number in 0..EVENTS {
        emit_sized(&mut writer, number, number, BYTES).await;
    }
    let proxy = Proxy::start(format!("127.0.0.1:{}", database.server().port())).await.unwrap();
    let options = ReaderOptions { batch_bytes: BatchBytes::new(BUDGET), ..reading("test") };
    let mut reader = Reader::open(database.url_via(proxy.port()).parse().unwrap(), options).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < usize::try_from(EVENTS).unwrap() {
        let batch = next(&mut reader).await;
        take(&batch, &mut seen, &mut 0);
        reader.settle(&batch).await.unwrap();
    }
    let carried = proxy.carried(Direction::ToClient);
    println!("{carried} bytes carried for {EVENTS} events of {BYTES}");
    // Each once, and once what was on its way when they turned out to be large.
    let once = u64::try_from(EVENTS * i64::from(BYTES)).unwrap();
    assert!(carried < once + 40_000_000, "{carried}");
}

/// Lanes that always have something small do not keep a large event of another one waiting for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_gets_its_turn() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    // Somebody in the first lane, and somebody in the last one.
    let [first, last]: [i64; 2] = sqlx::query_scalar(
        "select array[min(k) filter (where lane = 0), min(k) filter (where lane = 15)]
         from (select k, hashtextextended(k::text, 0) & 15 as lane from generate_series(1, 1000::bigint) k) keys",
    )
    .fetch_one(&mut writer)
    .await
    .map(|keys: Vec<i64>| keys.try_into().unwrap())
    .unwrap();
    for number in 0..300 {
        emit_sized(&mut writer, number, first, 1).await;
    }
    emit_sized(&mut writer, 300, last, 300_000).await;
    let options = ReaderOptions { batch_bytes: BatchBytes::new(BUDGET), page: 10, ..reading("test") };
    let mut reader = open(&database, options).await;
    let mut seen = Vec::new();
    while seen.len() < 301 {
        let batch = next(&mut reader).await;
        take(&batch, &mut seen, &mut 0);
        reader.settle(&batch).await.unwrap();
    }
    let place = seen.iter().position(|(_, number)| *number == 300).unwrap();
    assert!(place < 100, "it came as number {place}");
}

/// Of all readers that share their room one at a time has a large event. Small ones of other lanes pass meanwhile, and one that does not
/// get rid of its event holds the others up for a while only.
#[tokio::test(flavor = "multi_thread")]
async fn large_events_are_taken_one_reader_at_a_time() {
    const SMALL: usize = 40;
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    emit_sized(&mut writer, 0, 0, 300_000).await;
    let batch_bytes = BatchBytes::new(BUDGET);
    let shared = |sink| ReaderOptions { batch_bytes: batch_bytes.clone(), ..reading(sink) };
    let mut first = open(&database, shared("first")).await;
    let held = next(&mut first).await;
    assert_eq!(held.len(), 1);

    // In other lanes than the large one, which all of them would come after.
    for number in 0..i64::try_from(SMALL).unwrap() {
        sqlx::query(
            "select postrider.emit('sized', json_build_object('number', $1 + 1), key =>
               (select k from generate_series($1 * 100 + 1, $1 * 100 + 100) k
                where hashtextextended(k::text, 0) & 15 <> hashtextextended('0', 0) & 15 limit 1)::text)",
        )
        .bind(number)
        .execute(&mut writer)
        .await
        .unwrap();
    }
    let mut second = open(&database, shared("second")).await;
    let mut third = open(&database, shared("third")).await;
    for reader in [&mut second, &mut third] {
        let small = next(reader).await;
        assert_eq!(small.len(), SMALL, "all but the large one");
        reader.settle(&small).await.unwrap();
    }
    first.settle(&held).await.unwrap();
    drop(held);
    // It does not go on with it, as if its sink were away.
    let (stuck, mut other) = tokio::select! {
        batch = next(&mut second) => (batch, third),
        batch = next(&mut third) => (batch, second),
    };
    let passed = next(&mut other).await;
    for batch in [&stuck, &passed] {
        assert_eq!(batch.records().map(|record| record.payload.len() / 300_000).collect::<Vec<_>>(), [1]);
    }
}
