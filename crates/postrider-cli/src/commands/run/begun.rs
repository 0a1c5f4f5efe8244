//! A sink that the log knows goes on where it stopped, also when `--to` names another place or `--start` another beginning.

use std::fs;
use std::time::Duration;

use time::OffsetDateTime;

use crate::config::{self, Config, Overrides};
use crate::{connect, moment};

/// A database that is away is no reason to start later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says so when somebody asks for another beginning than the sink has, or for a file that got nothing of what came before.
pub(super) async fn warn(config: &Config, overrides: &Overrides) {
    let (Some(_), [sink]) = (&overrides.to, config.relay.sinks.as_slice()) else { return };
    let begins_empty = config::file_of(&sink.target)
        .is_some_and(|path| fs::metadata(path).map_or(true, |there| there.len() == 0));
    if overrides.start.is_none() && !begins_empty {
        return;
    }
    let since = async {
        let mut connection = connect::open(config.relay.database.clone()).await.ok()?;
        sqlx::query_scalar::<_, OffsetDateTime>("select created_at from postrider.sinks where name = $1")
            .bind(&sink.name)
            .fetch_optional(&mut connection)
            .await
            .ok()?
    };
    let Ok(Some(since)) = tokio::time::timeout(PATIENCE, since).await else { return };
    let since = moment::short(since);
    if let Some(start) = &overrides.start {
        tracing::warn!(
            sink = sink.name,
            start,
            since,
            "--start is not heeded: the log knows this sink, by its name, and it goes on where it stopped, wherever it writes to now; \
             `postrider sinks forget` makes it begin anew, and sinks in postrider.yaml have names of their own"
        );
    } else {
        tracing::warn!(
            sink = sink.name,
            since,
            "this file has no event yet, but the log knows the sink, by its name, and it goes on where it stopped: what was delivered before, \
             if anything, is elsewhere; `postrider sinks forget` makes it begin anew, and sinks in postrider.yaml have names of their own"
        );
    }
}
