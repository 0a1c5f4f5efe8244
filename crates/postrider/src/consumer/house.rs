//! What some consumer has to do now and then, whichever: there may be no relay that does it.

use std::convert::Infallible;
use std::time::Duration;

use super::{Shared, attempts};
use crate::inbox;
use crate::log::error::Result;

const EVERY: Duration = Duration::from_mins(1);

/// For ever: the ring of the inbox is turned, or it would grow for ever, and attempts at what never came back are forgotten.
pub(super) async fn keep(shared: &Shared) -> Infallible {
    loop {
        if let Err(error) = once(shared).await {
            tracing::warn!(consumer = shared.consumer, %error, "the inbox was not swept; that is tried again");
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn once(shared: &Shared) -> Result<()> {
    inbox::turn(&mut *shared.pool.acquire().await?, None).await?;
    attempts::sweep(&shared.pool, &shared.consumer).await?;
    Ok(())
}
