//! What `emit` writes: overloads, ids, lanes.

use std::collections::HashSet;

use postrider_testkit::Version;
use sqlx::{PgConnection, Row as _};
use uuid::{Uuid, Variant};

use super::fails;
use crate::support::database_of;

const VERSIONS: [Version; 2] = [Version::V15, Version::V18];

/// Every way to call it: the payload and headers as they are stored.
#[tokio::test]
async fn every_overload_is_found() {
    let text = r#"{"z":  1, "a": 1.50}"#;
    let normal = r#"{"a": 1.50, "z": 1}"#;
    for version in VERSIONS {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        for (call, payload) in [
            (format!("emit('t', '{text}')"), text),
            (format!("emit('t', '{text}'::text)"), text),
            (format!("emit('t', '{text}'::json)"), text),
            (format!("emit('t', '{text}'::jsonb)"), normal),
            (format!("emit(payload => '{text}', type => 't')"), text),
            (format!("emit('t', '{text}', 'k', 'tenant', 'entity', '{{\"h\": 1}}')"), text),
            (format!("emit('t', '{text}'::jsonb, headers => '{{\"h\": 1}}', key => 'k')"), normal),
            (format!("emit_many('[{{\"type\": \"t\", \"payload\": {text}}}]')"), text),
            (format!("emit_many('[{{\"type\": \"t\", \"payload\": {text}}}]'::json)"), text),
            (format!("emit_many('[{{\"type\": \"t\", \"payload\": {text}}}]'::jsonb)"), normal),
        ] {
            let statement = format!("select postrider.{call}");
            let id: Uuid = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
                .fetch_one(&mut connection)
                .await
                .unwrap_or_else(|error| panic!("{version}: {call}: {error}"));
            let stored: String =
                sqlx::query_scalar("select payload::text from postrider.events where id = $1")
                    .bind(id)
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
            assert_eq!(stored, payload, "{version}: {call}");
        }
    }
}

#[tokio::test]
async fn ids_are_uuids_of_version_7() {
    for version in VERSIONS {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        let rows = sqlx::query(
            "select postrider.uuid7(), date_part('epoch', clock_timestamp()) from generate_series(1, 100000)",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let mut seen = HashSet::new();
        let mut before = None;
        for row in &rows {
            let (id, now): (Uuid, f64) = (row.get(0), row.get(1));
            assert_eq!(id.get_version_num(), 7, "{version}: {id}");
            assert_eq!(id.get_variant(), Variant::RFC4122, "{version}: {id}");
            let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
            #[expect(clippy::cast_precision_loss, reason = "seconds of this century fit")]
            let time = seconds as f64 + f64::from(nanos) / 1e9;
            assert!((time - now).abs() < 1.0, "{version}: {id} says {time}, the server {now}");
            assert!(before <= Some(seconds), "{version}: {id} went back");
            before = Some(seconds);
            assert!(seen.insert(id), "{version}: {id} twice");
        }
    }
}

fn keys() -> Vec<String> {
    (0..200).map(|number| format!("{} key {number} ü", ["", "a", "Z", "ß", "日本"][number % 5])).collect()
}

async fn lanes(connection: &mut PgConnection) -> Vec<(i64, i16)> {
    for key in keys() {
        sqlx::query("select postrider.emit('t', '{}', key => $1)")
            .bind(key)
            .execute(&mut *connection)
            .await
            .unwrap();
    }
    sqlx::query_as("select hashtextextended(key collate \"C\", 0), lane from postrider.events order by seq")
        .fetch_all(connection)
        .await
        .unwrap()
}

/// The hash is signed and must be masked: with `abs()` the lane of every second key is another one, and the lowest number has none.
#[tokio::test]
async fn lanes_are_in_range_and_the_same_everywhere() {
    let mut first: Option<Vec<(i64, i16)>> = None;
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        let lanes = lanes(&mut connection).await;
        assert!(lanes.iter().all(|(_, lane)| (0..16).contains(lane)), "{version}");
        let negative: Vec<_> = lanes.iter().filter(|(hash, _)| *hash < 0).collect();
        assert!(negative.len() > 50, "{version}: keys with a negative hash are half of all");
        assert!(negative.iter().any(|(hash, lane)| hash.abs() % 16 != i64::from(*lane)), "{version}");
        // As emit_many has it.
        let again: Vec<i16> = sqlx::query_scalar(
            "with m as (select postrider.emit_many(json_agg(json_build_object('type', 't', 'payload', 1, 'key', key) order by place)) as id
                        from unnest($1::text[]) with ordinality as k (key, place))
             select count(*)::smallint from m",
        )
        .bind(keys())
        .fetch_all(&mut connection)
        .await
        .unwrap();
        assert_eq!(again, [200]);
        let differ: i64 = sqlx::query_scalar(
            "select count(*) from (select key from postrider.events group by key having min(lane) <> max(lane)) k",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(differ, 0, "{version}");
        assert_eq!(*first.get_or_insert_with(|| lanes.clone()), lanes, "{version}");

        let lowest = "'-9223372036854775808'::bigint";
        let complaint = fails(&mut connection, &format!("select abs({lowest}) & 15")).await;
        assert_eq!(complaint.code, "22003", "the mutant fails the user's INSERT");
        let masked: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select {lowest} & 15")))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(masked, 0);
    }
}
