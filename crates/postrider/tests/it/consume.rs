//! The receiving end: the inbox, batches of the log, subscriptions.

mod aborting;
mod batches;
mod child;
mod examples;
mod frozen;
mod inbox;
mod inbox_storm;
mod ledger;
mod subscription;
mod upgrade;
mod waking;
pub mod wrapping;

use postrider_testkit::Database;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

/// A batch of the log, as any language gets it.
pub struct Fetched {
    pub token: String,
    pub types: Vec<String>,
}

/// What `next_batch` gives, if anything.
pub async fn fetch(connection: &mut PgConnection, consumer: &str, most: i32) -> Option<Fetched> {
    let rows = sqlx::query("select * from postrider.next_batch($1, $2)")
        .bind(consumer)
        .bind(most)
        .fetch_all(connection)
        .await
        .unwrap();
    let first = rows.first()?;
    Some(Fetched { token: first.get("token"), types: rows.iter().map(|row| row.get("type")).collect() })
}

pub async fn finish(connection: &mut PgConnection, consumer: &str, batch: &Fetched) -> i32 {
    sqlx::query_scalar("select postrider.finish_batch($1, $2)")
        .bind(consumer)
        .bind(&batch.token)
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Begins anew with the first event of the log.
pub async fn subscribe(connection: &mut PgConnection, consumer: &str) {
    sqlx::query("select postrider.subscribe($1, 'earliest')")
        .bind(consumer)
        .execute(connection)
        .await
        .unwrap();
}

/// All that is there, batch by batch.
pub async fn drain(connection: &mut PgConnection, consumer: &str, most: i32) -> Vec<String> {
    let mut types = Vec::new();
    loop {
        sqlx::query("begin").execute(&mut *connection).await.unwrap();
        let batch = fetch(connection, consumer, most).await;
        if let Some(batch) = &batch {
            assert_eq!(finish(connection, consumer, batch).await, i32::try_from(batch.types.len()).unwrap());
            types.extend(batch.types.iter().cloned());
        }
        sqlx::query("commit").execute(&mut *connection).await.unwrap();
        if batch.is_none() {
            return types;
        }
    }
}

/// What it says to a statement that it refuses: SQLSTATE, message, detail, hint.
pub async fn refusal(connection: &mut PgConnection, statement: &str) -> [String; 4] {
    let error = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.unwrap_err();
    let said = error.as_database_error().unwrap();
    let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    [said.code(), said.message(), said.detail().unwrap_or_default(), said.hint().unwrap_or_default()]
        .map(str::to_owned)
}

/// A role that may consume and nothing else.
pub async fn consumer_role(database: &Database) -> (String, PgConnection) {
    use sqlx::Connection as _;
    let role = format!("{}_consumer", database.name());
    sqlx::raw_sql(AssertSqlSafe(format!(
        r#"create role "{role}" login; grant postrider_consume to "{role}""#
    )))
    .execute(&mut database.connect().await.unwrap())
    .await
    .unwrap();
    let connection = PgConnection::connect(&database.url_as(&role)).await.unwrap();
    (role, connection)
}

pub async fn drop_role(database: &Database, role: &str) {
    sqlx::raw_sql(AssertSqlSafe(format!(r#"drop owned by "{role}"; drop role "{role}""#)))
        .execute(&mut database.connect().await.unwrap())
        .await
        .unwrap();
}
