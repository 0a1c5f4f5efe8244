//! Which role somebody has to be a member of, for commands that say so instead of failing in the middle.

use postrider::log::{self, Error};
use sqlx::PgConnection;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// At the views, which hold no payload.
    Look,
    /// The events themselves.
    ReadLog,
}

/// Who asks, and what lets them.
pub(super) struct Remedy {
    pub(super) user: String,
    pub(super) statement: String,
}

/// The statement for this task. Needs no right at all.
pub(super) async fn remedy(connection: &mut PgConnection, task: Task) -> log::error::Result<Remedy> {
    let (user, statement): (String, Option<String>) =
        sqlx::query_as(include_str!("rights.sql")).bind(task == Task::ReadLog).fetch_one(connection).await?;
    // Somebody has taken back what every installation grants.
    let statement = statement.unwrap_or_else(|| "postrider init".to_owned());
    Ok(Remedy { user, statement })
}

/// Refuses, with the remedy, what the server would refuse at the first table. Comes after the check of the schema's version.
pub(super) async fn require_log(connection: &mut PgConnection) -> log::error::Result<()> {
    let may: bool = sqlx::query_scalar(
        "select has_table_privilege('postrider.events', 'select') and has_table_privilege('postrider.parked', 'select')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if may {
        return Ok(());
    }
    let Remedy { user, statement } = remedy(connection, Task::ReadLog).await?;
    let missing = "may not read the log itself, which this command needs; to look at the views is not enough"
        .to_owned();
    Err(Error::Rights { user, missing, whom: "an administrator".to_owned(), statement })
}
