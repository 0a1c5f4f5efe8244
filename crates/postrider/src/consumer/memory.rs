//! Whether the inbox remembers for as long as messages may come again.

use std::time::Duration;

use super::{Error, Shared};
use crate::consume::patience::Patience;
use crate::{inbox, log, schema};

/// Refuses a broker that keeps messages for longer. A database that is away is waited for.
pub(super) async fn suffices(shared: &Shared, keeps: Option<Duration>) -> Result<(), Error> {
    let mut patience = Patience::new();
    let remembers = loop {
        match remembered(shared).await {
            Ok(remembers) => break remembers,
            Err(error) => patience.wait(&shared.consumer, error).await?,
        }
    };
    let Some(keeps) = keeps.filter(|keeps| *keeps > remembers) else { return Ok(()) };
    if keeps < Duration::MAX {
        return Err(Error::Forgetful { keeps, remembers });
    }
    // No inbox would do, and what comes again after so long is rare: a message whose acknowledgement was lost.
    tracing::warn!(
        consumer = shared.consumer,
        ?remembers,
        "the broker keeps messages without a limit: one that comes again when the inbox has forgotten it takes effect again"
    );
    Ok(())
}

async fn remembered(shared: &Shared) -> log::error::Result<Duration> {
    let mut connection = shared.pool.acquire().await?;
    schema::check_version(&mut connection).await?;
    inbox::retention(&mut connection).await
}
