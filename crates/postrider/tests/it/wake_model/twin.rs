//! The producers of the model decide by [`hint`]; here the real ones are held to it.

use postrider::log::wake::hint;
use sqlx::PgConnection;
use sqlx::postgres::PgListener;

use crate::support;

/// Sets a sequence to a value, or back to never having been called.
async fn set(connection: &mut PgConnection, sequence: &str, value: Option<u64>) -> sqlx::Result<()> {
    let statement = match value {
        Some(value) => format!("select setval('postrider.{sequence}', {value})"),
        None => format!("alter sequence postrider.{sequence} restart"),
    };
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

#[tokio::test]
async fn producers_notify_what_the_hint_says() {
    const PRODUCERS: [&str; 3] = [
        "select postrider.ring_bell()",
        "select postrider.emit('a', '{}')",
        r#"select postrider.emit_many('[{"type": "a", "payload": 1}, {"type": "a", "payload": 2}]')"#,
    ];
    let database = support::database().await;
    let mut connection = database.connect().await.unwrap();
    let mut listener = PgListener::connect(&database.url()).await.unwrap();
    listener.listen("postrider").await.unwrap();
    let now: i64 = sqlx::query_scalar("select date_part('epoch', clock_timestamp())::bigint")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let now = now.unsigned_abs();
    let values = [None, Some(0), Some(1), Some(2)];
    let mut rung = 0;
    for until in [None, Some(now - 5), Some(now + 3600)] {
        set(&mut connection, "armed_until", until).await.unwrap();
        for armed in values {
            set(&mut connection, "armed", armed).await.unwrap();
            for disarmed in values {
                set(&mut connection, "disarmed", disarmed).await.unwrap();
                let expected = hint(armed.unwrap_or(0), disarmed.unwrap_or(0), now, until.unwrap_or(0));
                for producer in PRODUCERS {
                    sqlx::raw_sql(producer).execute(&mut connection).await.unwrap();
                    // Notifications arrive in the order of the commits: after this one nothing more comes.
                    sqlx::raw_sql("notify postrider, 'end'").execute(&mut connection).await.unwrap();
                    let mut heard: Vec<u64> = Vec::new();
                    loop {
                        let notification = listener.recv().await.unwrap();
                        if notification.payload() == "end" {
                            break;
                        }
                        heard.push(notification.payload().parse().unwrap());
                    }
                    let expected: Vec<u64> = expected.into_iter().collect();
                    assert_eq!(
                        heard, expected,
                        "{producer}: armed {armed:?}, disarmed {disarmed:?}, until {until:?}, now {now}"
                    );
                    rung += heard.len();
                }
            }
        }
    }
    // Of the sixteen pairs five have armed above disarmed; only one of the three times is ahead.
    assert_eq!(rung, 5 * PRODUCERS.len());
}
