//! Jobs by the clock: each tick once, however many workers keep the schedule. Only the database's clock is asked.

use sqlx::{PgConnection, Row as _};
use time::{OffsetDateTime, PrimitiveDateTime};

use super::cron::{Cron, Expression};
use super::error::{Error, Result};

/// So many missed ticks are made up for at most.
const MOST_MISSED: usize = 1000;

/// Makes schedules known, and leaves those that the database refuses: they do not keep the others from it.
pub(super) async fn declare(connection: &mut PgConnection, crons: &mut Vec<Cron>) -> Result<()> {
    let (mut wrong, mut next) = (None, 0);
    while let Some(cron) = crons.get(next) {
        match declare_one(connection, cron).await {
            Ok(()) => drop(crons.remove(next)),
            Err(error) => {
                wrong = Some(refused(&cron.name, error)?);
                next += 1;
            }
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// What the server holds against a schedule; anything else is its own trouble.
fn refused(name: &str, error: sqlx::Error) -> Result<Error> {
    let is_input = |code: &str| ["22", "23", "54"].iter().any(|class| code.starts_with(class));
    match error.as_database_error() {
        Some(said) if said.code().as_deref().is_some_and(is_input) => {
            Ok(Error::Schedule { name: name.to_owned(), reason: said.message().to_owned() })
        }
        _ => Err(error.into()),
    }
}

async fn declare_one(connection: &mut PgConnection, cron: &Cron) -> sqlx::Result<()> {
    sqlx::query("select postrider.declare_cron($1, $2, $3, $4::text::json, $5, $6, $7, $8, $9)")
        .bind(&cron.name)
        .bind(&cron.expression)
        .bind(&cron.kind)
        .bind(cron.payload.to_string())
        .bind(&cron.time_zone)
        .bind(&cron.queue)
        .bind(i32::from(cron.priority))
        .bind(i32::from(cron.max_attempts))
        .bind(cron.missed.as_str())
        .execute(connection)
        .await?;
    Ok(())
}

/// Enqueues what is due.
pub(super) async fn tick(connection: &mut PgConnection, crons: &[Cron]) -> Result<()> {
    if crons.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = crons.iter().map(|cron| cron.name.as_str()).collect();
    let due =
        sqlx::query("select name, expression, missed, next_at, tick, now_there from postrider.due_crons($1)")
            .bind(names)
            .fetch_all(&mut *connection)
            .await?;
    let mut wrong = None;
    for row in due {
        let name: String = row.try_get(0)?;
        let expression = match Expression::parse(row.try_get(1)?) {
            Ok(expression) => expression,
            // The others are kept all the same.
            Err(reason) => {
                wrong = Some(Error::Schedule { name, reason });
                continue;
            }
        };
        let expected: Option<OffsetDateTime> = row.try_get(3)?;
        let now: PrimitiveDateTime = row.try_get(5)?;
        let ticks = due_ticks(&expression, row.try_get(2)?, row.try_get(4)?, now);
        let next = expression.after(now.max(ticks.last().copied().unwrap_or(now)));
        // Whoever is second finds another time there than the one it expected, and has enqueued nothing.
        let ticked = sqlx::query("select postrider.tick_cron($1, $2, $3, $4)")
            .bind(&name)
            .bind(expected)
            .bind(&ticks)
            .bind(next)
            .execute(&mut *connection)
            .await;
        if let Err(error) = ticked {
            wrong = Some(refused(&name, error)?);
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// Which ticks get a job: the one that is due, and of those that were missed what the policy says.
fn due_ticks(
    expression: &Expression,
    missed: &str,
    first: Option<PrimitiveDateTime>,
    now: PrimitiveDateTime,
) -> Vec<PrimitiveDateTime> {
    /// A tick that is no older than this is not missed, only late.
    const LATE: time::Duration = time::Duration::minutes(1);
    let Some(first) = first else { return Vec::new() };
    let all = std::iter::successors(Some(first), |tick| Some(expression.after(*tick)));
    let mut ticks: Vec<_> = all.take_while(|tick| *tick <= now).take(MOST_MISSED).collect();
    // A schedule of every minute that nobody kept for a week: the last one counts, not the thousandth.
    if missed != "all" && ticks.len() == MOST_MISSED {
        let near = now - time::Duration::days(1);
        let last = std::iter::successors(Some(expression.after(near)), |tick| Some(expression.after(*tick)));
        ticks.extend(last.take_while(|tick| *tick <= now));
    }
    match missed {
        "all" => ticks,
        "skip" => ticks.last().copied().filter(|tick| now - *tick <= LATE).into_iter().collect(),
        _ => ticks.last().copied().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn missed(policy: &str) -> Vec<PrimitiveDateTime> {
        let hourly = Expression::parse("0 * * * *").unwrap();
        due_ticks(&hourly, policy, Some(datetime!(2026-03-01 01:00)), datetime!(2026-03-01 03:30))
    }

    #[test]
    fn missed_ticks_are_what_the_policy_says() {
        assert_eq!(missed("skip"), []);
        assert_eq!(missed("last"), [datetime!(2026-03-01 03:00)]);
        let all = [datetime!(2026-03-01 01:00), datetime!(2026-03-01 02:00), datetime!(2026-03-01 03:00)];
        assert_eq!(missed("all"), all);
    }

    #[test]
    fn after_a_long_absence_the_last_tick_is_the_last_one() {
        let every_minute = Expression::parse("* * * * *").unwrap();
        let ticks = due_ticks(
            &every_minute,
            "last",
            Some(datetime!(2026-03-01 00:00)),
            datetime!(2026-03-09 12:34:56),
        );
        assert_eq!(ticks, [datetime!(2026-03-09 12:34)]);
    }
}
