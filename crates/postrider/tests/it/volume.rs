//! A lot at once: huge transactions, a full ring, xids past 2^32.

use postrider::log::ring::{self, Retention, Turn};
use postrider_testkit::{PostgresServer, Settings, Version};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::collections::HashMap;
use std::time::Duration;

use crate::plans::{buffers, plan_of};
use crate::support::{database, database_on, emit, next, open, reading, run};

fn soak() -> bool {
    std::env::var_os("POSTRIDER_SOAK").is_some()
}

/// One transaction with very many events, most of them late: the reader has looked past them while it was open.
#[tokio::test]
async fn fault_38_one_huge_transaction_is_read_in_bounded_pages_and_in_order() {
    const PAGE: u32 = 500;
    let events = if soak() { 1_000_000 } else { 150_000 };
    let database = database().await;
    let (mut huge, mut small) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut options = reading("huge");
    options.page = PAGE;
    let mut reader = open(&database, options).await;
    run(&mut huge, "begin").await;
    let fill = |from: i32, to: i32| {
        format!(
            "insert into postrider.events (slot, lane, id, type, key, payload)
             select 0, hashtextextended(n % 97 || '', 0) & 15, gen_random_uuid(), 'huge', n % 97, json_build_object('n', n)
             from generate_series({from}, {to}) n"
        )
    };
    sqlx::raw_sql(AssertSqlSafe(fill(1, events / 2))).execute(&mut huge).await.unwrap();
    emit(&mut small, "small", "s").await;
    let batch = next(&mut reader).await;
    assert_eq!(batch.len(), 1, "the open transaction holds nobody up");
    reader.settle(&batch).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(fill(events / 2 + 1, events))).execute(&mut huge).await.unwrap();
    run(&mut huge, "commit").await;

    let (mut seen, mut last) = (0, HashMap::new());
    while seen < events {
        let batch = next(&mut reader).await;
        assert!(batch.len() <= PAGE as usize * 16, "a batch of {}", batch.len());
        for record in batch.records() {
            let n: i32 =
                record.payload.trim_start_matches("{\"n\" : ").trim_end_matches('}').parse().unwrap();
            let before = last.insert(record.key.clone(), n).unwrap_or(0);
            assert!(n > before, "{n} after {before}");
            seen += 1;
        }
        reader.settle(&batch).await.unwrap();
    }
    assert_eq!(seen, events);
}

/// The median of the buffers that an emit touches; it is taken back, and the first ones fill the caches of the connection.
async fn buffers_of_an_emit(connection: &mut PgConnection) -> i64 {
    let mut touched = Vec::new();
    for _ in 0..21 {
        run(connection, "begin").await;
        touched
            .push(buffers(&plan_of(connection, "select postrider.emit('n', '0'::json, key => '1')").await));
        run(connection, "rollback").await;
    }
    touched.sort_unstable();
    touched[touched.len() / 2]
}

#[tokio::test]
async fn with_all_slots_full_and_no_reader_emit_goes_on_and_the_first_reader_back_gets_everything() {
    const EACH: i32 = 500;
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    open(&database, reading("away")).await.close().await.unwrap();
    let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
    let mut n = 0;
    let mut held = false;
    let first = buffers_of_an_emit(&mut writer).await;
    for _ in 0..12 {
        for _ in 0..EACH {
            n += 1;
            sqlx::query("select postrider.emit('n', to_json($1::int), key => ($1 % 7)::text)")
                .bind(n)
                .execute(&mut writer)
                .await
                .unwrap();
        }
        held |= matches!(ring::turn(&mut writer, at_once).await.unwrap(), Turn::Held(_));
    }
    assert!(held, "all eight slots are full and owed");
    let slots: i64 = sqlx::query_scalar("select count(distinct slot) from postrider.events")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(slots, 8);
    // What it costs is counted in buffers, because time on a busy machine says nothing; the rate is a figure of `./dev bench log`.
    let last = buffers_of_an_emit(&mut writer).await;
    assert!(last <= first + 8, "an emit touched {first} buffers, and {last} with all slots full");

    let mut reader = open(&database, reading("away")).await;
    let (mut seen, mut last) = (0, HashMap::new());
    while seen < n {
        let batch = next(&mut reader).await;
        for record in batch.records() {
            let number: i32 = record.payload.parse().unwrap();
            assert!(last.insert(record.key.clone(), number).is_none_or(|before| before < number));
            seen += 1;
        }
        reader.settle(&batch).await.unwrap();
    }
    assert_eq!(seen, n);
}

/// Transaction ids of 32 bits wrap here; the log knows only those of 64.
#[tokio::test]
async fn fault_21_the_epoch_of_xids_changes_under_load() {
    let server =
        PostgresServer::private(Version::V15, Settings::for_tests().set("autovacuum", "off")).await.unwrap();
    let database = database_on(&server).await;
    let mut writer = database.connect().await.unwrap();
    open(&database, reading("across")).await.close().await.unwrap();
    emit(&mut writer, "before", "k").await;
    for name in ["postgres", "template1", database.name()] {
        let mut connection = sqlx::PgConnection::connect(&server.url(name)).await.unwrap();
        run(&mut connection, "vacuum freeze").await;
        connection.close().await.unwrap();
    }
    writer.close().await.unwrap();
    server.stop().await.unwrap();
    // A little below 2^32, with a commit log page that the server would have made on its way there.
    let xid = (1_u64 << 32) - 3000;
    let segment = server.data_dir().join("pg_xact").join(format!("{:04X}", xid / (32 * 8192 * 4)));
    let mut reset = server.run_as("pg_resetwal").unwrap();
    reset.arg("-D").arg(server.data_dir()).args([
        "-x",
        &xid.to_string(),
        "-u",
        &(xid - 1_000_000).to_string(),
    ]);
    let done = reset.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::write(&segment, vec![0_u8; 32 * 8192]).unwrap();
    std::os::unix::fs::chown(&segment, Some(owner(&server.data_dir())), None).unwrap();
    server.start().await.unwrap();

    let mut reader = open(&database, reading("across")).await;
    let url = database.url().clone();
    let writing = tokio::spawn(async move {
        let mut writer = sqlx::PgConnection::connect(&url).await.unwrap();
        run(
            &mut writer,
            "do $$ begin for n in 1..6000 loop perform postrider.emit('across', to_json(n), key => 'k'); commit; end loop; end $$",
        )
        .await;
        let xid: String =
            sqlx::query_scalar("select pg_current_xact_id()::text").fetch_one(&mut writer).await.unwrap();
        xid.parse::<u64>().unwrap()
    });
    let mut last = 0;
    let mut before = 0;
    while last < 6000 {
        let batch = next(&mut reader).await;
        for record in batch.records() {
            if record.r#type == "before" {
                before += 1;
                continue;
            }
            let n: i32 = record.payload.parse().unwrap();
            assert_eq!(n, last + 1);
            last = n;
        }
        reader.settle(&batch).await.unwrap();
    }
    assert_eq!(before, 1);
    assert!(writing.await.unwrap() > 1 << 32, "the epoch has changed");
}

fn owner(path: &std::path::Path) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).unwrap())
}
