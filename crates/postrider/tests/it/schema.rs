//! The schema: installing it, and what it promises to those who emit.

mod bad_calls;
mod definer;
mod hostile;
mod install;
mod owner;
mod publication;
mod restore;
mod values;

use sqlx::PgConnection;
use sqlx::postgres::PgDatabaseError;

/// What the server said: SQLSTATE, message, detail, hint.
struct Complaint {
    code: String,
    message: String,
    detail: String,
    hint: String,
}

impl Complaint {
    fn of(error: &sqlx::Error) -> Self {
        let said = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
        let said: &PgDatabaseError = said.downcast_ref();
        Self {
            code: said.code().to_owned(),
            message: said.message().to_owned(),
            detail: said.detail().unwrap_or_default().to_owned(),
            hint: said.hint().unwrap_or_default().to_owned(),
        }
    }
}

/// The error of a statement that must fail.
async fn fails(connection: &mut PgConnection, statement: &str) -> Complaint {
    let result = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(connection).await;
    Complaint::of(&result.expect_err(statement))
}

async fn count_events(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.events").fetch_one(connection).await.unwrap()
}
