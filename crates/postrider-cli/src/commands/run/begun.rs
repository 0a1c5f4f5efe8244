//! `--start` counts once: a sink that the log knows goes on where it stopped.

use std::time::Duration;

use time::OffsetDateTime;

use crate::config::{Config, Overrides};
use crate::{connect, moment};

/// A database that is away is no reason to start later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says so when somebody asks for another beginning than the sink has.
pub(super) async fn warn(config: &Config, overrides: &Overrides) {
    let (Some(start), [sink]) = (&overrides.start, config.relay.sinks.as_slice()) else { return };
    let since = async {
        let mut connection = connect::open(config.relay.database.clone()).await.ok()?;
        sqlx::query_scalar::<_, OffsetDateTime>("select created_at from postrider.sinks where name = $1")
            .bind(&sink.name)
            .fetch_optional(&mut connection)
            .await
            .ok()?
    };
    if let Ok(Some(since)) = tokio::time::timeout(PATIENCE, since).await {
        tracing::warn!(
            sink = sink.name,
            start,
            since = moment::short(since),
            "--start is not heeded: the log knows this sink, by its name, and it goes on where it stopped, wherever it writes to now; \
             `postrider sinks forget` makes it begin anew, and sinks in postrider.yaml have names of their own"
        );
    }
}
