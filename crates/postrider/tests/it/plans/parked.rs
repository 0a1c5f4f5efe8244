//! Parked events: what the next hundred cost must not depend on how many there are. The table is empty most of the time, so the planner
//! knows nothing of it just when it is needed.

use postrider::log::session;
use sqlx::{AssertSqlSafe, PgConnection};

use super::{buffers, plan_of};
use crate::support::{database, options, run};

const READER: &str = "00000000-0000-0000-0000-000000000001";
/// Of each key so many, all but the first behind it.
const OF_A_KEY: i64 = 10;

/// The statements that are run for every page of parked events, with their parameters.
const STATEMENTS: [(&str, &str, &str, &str); 6] = [
    (
        "due",
        include_str!("../../../src/log/sql/parked_due.sql"),
        "int, uuid, boolean, bigint, smallint[]",
        "1, :reader, true, 100, '{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}'",
    ),
    (
        "delivered",
        include_str!("../../../src/log/sql/parked_delivered.sql"),
        "int, uuid, uuid[], text[]",
        "1, :reader, :ids, array_fill('delivered'::text, array[100])",
    ),
    (
        "refused",
        include_str!("../../../src/log/sql/parked_refused.sql"),
        "int, uuid, uuid[], text[], text[], double precision[]",
        "1, :reader, :ids, array_fill('rejected'::text, array[100]), array_fill('no'::text, array[100]), array_fill(1::float8, array[100])",
    ),
    (
        "promoted",
        include_str!("../../../src/log/sql/parking_promote.sql"),
        "int, text[], text[]",
        "1, array_fill(''::text, array[100]), :keys",
    ),
    ("free", include_str!("../../../src/log/sql/parked_free.sql"), "int, text[]", "1, :keys"),
    ("discarded", include_str!("../../../src/log/sql/parking_discard.sql"), "bigint[]", ":places"),
];

/// So many parked events; nobody has looked at what the table holds.
async fn park(connection: &mut PgConnection, from: i64, to: i64) {
    let statement = format!(
        "insert into postrider.parked (sink, id, lane, seq, type, key, payload, created_at, state, attempts, next_attempt_at)
         select 1, postrider.uuid7(), (n / {OF_A_KEY}) % 16, n, 'filled', n / {OF_A_KEY}, '{{}}', now(),
                case n % {OF_A_KEY} when 0 then 'waiting' else 'behind' end, 1, now()
         from generate_series({from}, {to}) n"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.unwrap();
}

/// What each statement touches for a hundred events.
async fn touched(connection: &mut PgConnection, mode: &str) -> Vec<i64> {
    let (ids, keys, places): (String, String, String) = sqlx::query_as(
        "select array_agg(id)::text, array_agg(key)::text, array_agg(place)::text
         from (select id, key, place from postrider.parked where state = 'waiting' order by place limit 100) p",
    )
    .fetch_one(&mut *connection)
    .await
    .unwrap();
    let mut touched = Vec::new();
    for (name, statement, types, parameters) in STATEMENTS {
        let parameters = [(":reader", READER), (":ids", &ids), (":keys", &keys), (":places", &places)]
            .into_iter()
            .fold(parameters.to_owned(), |text, (name, value)| text.replace(name, &format!("'{value}'")));
        // However long the machine stands still in the middle of it.
        let prepare = format!(
            "begin; set local idle_in_transaction_session_timeout = 0; set local plan_cache_mode = {mode};
             prepare {name} ({types}) as {statement}"
        );
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
        touched.push(buffers(&plan_of(connection, &format!("execute {name} ({parameters})")).await));
        let end = format!("rollback; deallocate {name}");
        sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut *connection).await.unwrap();
    }
    touched
}

#[tokio::test]
async fn the_next_hundred_cost_the_same_however_many_are_parked() {
    let database = database().await;
    let mut connection = session::connect(&options(&database)).await.unwrap();
    // Nothing may learn in between what the table holds.
    for statement in [
        "alter table postrider.parked set (autovacuum_enabled = false)",
        "insert into postrider.sinks (sink, name) overriding system value values (1, 'sink')",
        "insert into postrider.leases (sink, lane, owner, epoch)
         select 1, lane, '00000000-0000-0000-0000-000000000001', 1 from generate_series(0, 15) lane",
    ] {
        run(&mut connection, statement).await;
    }
    park(&mut connection, 0, 19_999).await;
    let mut small = Vec::new();
    for mode in ["force_generic_plan", "force_custom_plan"] {
        small.push(touched(&mut connection, mode).await);
    }
    park(&mut connection, 20_000, 99_999).await;
    for (mode, small) in ["force_generic_plan", "force_custom_plan"].into_iter().zip(small) {
        let large = touched(&mut connection, mode).await;
        for (((name, ..), small), large) in STATEMENTS.iter().zip(small).zip(large) {
            // One more level of each index.
            assert!(
                large <= 2 * small,
                "{mode}, {name}: {small} buffers at 20,000 parked events, {large} at 100,000"
            );
        }
    }
}
