//! Order: of a key under random interleavings, and of everything with one lane.

use std::collections::HashMap;

use postrider_testkit::Seed;
use rand::RngExt;
use sqlx::PgConnection;

use crate::rules::Hand;
use crate::support::{database, database_with_one_lane, emit, run};

/// Sessions that take their xid at any time, write a key under its row lock, and commit at any time.
#[tokio::test]
async fn fault_18_ten_thousand_random_interleavings_keep_the_order_of_every_key() {
    // Each of them is woven into those of three other sessions and into the rounds of a reader.
    let transactions = if std::env::var_os("POSTRIDER_SOAK").is_some() { 100_000 } else { 10_000 };
    let database = database().await;
    let mut rng = Seed::from_env_or_random("fault 18").rng();
    let mut admin = database.connect().await.unwrap();
    run(&mut admin, "create table k (key int primary key, n int not null); insert into k select g, 0 from generate_series(0, 2) g").await;
    let mut sessions: Vec<(PgConnection, bool)> = Vec::new();
    for _ in 0..4 {
        sessions.push((database.connect().await.unwrap(), false));
    }
    let mut reader = Hand::open(&database).await;
    let (mut last, mut seen): (HashMap<String, i32>, usize) = (HashMap::new(), 0);
    let mut check = |round: postrider::log::round::Round| {
        for record in round.pages.values().flat_map(|page| &page.records) {
            let n: i32 = record.payload.parse().unwrap();
            let before = last.insert(record.key.clone().unwrap(), n).unwrap_or(0);
            assert_eq!(n, before + 1, "key {:?}", record.key);
            seen += 1;
        }
    };
    let mut ended = 0;
    while ended < transactions {
        let (session, open) = &mut sessions[rng.random_range(0..4)];
        match (*open, rng.random_range(0..8)) {
            (false, 0..5) => {
                run(session, "begin; select pg_current_xact_id()").await;
                *open = true;
            }
            (true, 0..4) => {
                // Whoever finds the key locked leaves it alone.
                let key: i32 = rng.random_range(0..3);
                sqlx::query(
                    "with free as (select key from k where key = $1 for update skip locked),
                          counted as (update k set n = n + 1 from free where k.key = free.key returning k.n)
                     select postrider.emit('step', to_json(n), key => $1::text) from counted",
                )
                .bind(key)
                .execute(&mut *session)
                .await
                .unwrap();
            }
            (true, 4..7) => {
                run(session, if rng.random_bool(0.8) { "commit" } else { "rollback" }).await;
                *open = false;
                ended += 1;
            }
            _ => {
                let round = reader.peek().await;
                reader.move_past(&round);
                check(round);
            }
        }
    }
    for (session, _) in &mut sessions {
        run(session, "commit").await;
    }
    let round = reader.peek().await;
    check(round);
    let written: i64 = sqlx::query_scalar("select sum(n) from k").fetch_one(&mut admin).await.unwrap();
    assert_eq!(seen, usize::try_from(written).unwrap());
    let by_xid_is_wrong: bool = sqlx::query_scalar(
        "select exists (select from (select payload::text::int n, lag(payload::text::int) over (partition by key order by xid, seq) before
            from postrider.events) e where n < before)",
    )
    .fetch_one(&mut admin)
    .await
    .unwrap();
    assert!(by_xid_is_wrong, "ordering by xid would have been good enough: the interleavings are too tame");
}

/// With one lane the whole log comes in the order of seq, late ones excepted: those were invisible when the reader passed them.
#[tokio::test]
async fn one_lane_gives_one_total_order() {
    let database = database_with_one_lane().await;
    let mut rng = Seed::from_env_or_random("one lane").rng();
    let mut sessions: Vec<(PgConnection, bool)> = Vec::new();
    for _ in 0..4 {
        sessions.push((database.connect().await.unwrap(), false));
    }
    let mut admin = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    reader.page = 3;
    let (mut highest, mut late, mut snapshot) = (0, 0, String::from("1:1:"));
    for step in 0..3000 {
        let (session, open) = &mut sessions[rng.random_range(0..4)];
        match (*open, rng.random_range(0..4)) {
            (false, 0..2) => {
                run(session, "begin").await;
                *open = true;
            }
            (_, 2) => emit(session, "any", &step.to_string()).await,
            (true, _) => {
                run(session, "commit").await;
                *open = false;
            }
            _ => {
                let round = reader.peek().await;
                for record in round.pages.values().flat_map(|page| &page.records) {
                    if record.seq < highest {
                        late += 1;
                        let was_visible: bool = sqlx::query_scalar(
                            "select pg_visible_in_snapshot(xid, $2::text::pg_snapshot) from postrider.events where seq = $1",
                        )
                        .bind(record.seq)
                        .bind(&snapshot)
                        .fetch_one(&mut admin)
                        .await
                        .unwrap();
                        assert!(
                            !was_visible,
                            "seq {} came after {highest} and was visible before",
                            record.seq
                        );
                    }
                    highest = highest.max(record.seq);
                }
                reader.move_past(&round);
                snapshot = reader.cursors[&0].snapshot.to_string();
            }
        }
    }
    assert!(late > 10 && highest > 500, "{late} late of {highest}: too tame");
}
