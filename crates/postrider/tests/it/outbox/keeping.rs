//! What a relay does for an adopted table, step by step.

use std::time::Duration;

use postrider::outbox::{self, Keeper, Marker, Outbox, Part, Worked};
use sqlx::PgConnection;

/// What a relay has for a table, one after the other over one session.
pub struct Keeping {
    keeper: Keeper,
    marker: Option<Marker>,
}

impl Keeping {
    pub async fn open(connection: &mut PgConnection, outbox: &Outbox) -> outbox::Result<Self> {
        Ok(Self {
            keeper: Keeper::open(connection, outbox, "test", Duration::from_secs(30)).await?,
            marker: Marker::open(connection, outbox, Part::WHOLE).await?,
        })
    }

    pub async fn work(&mut self, connection: &mut PgConnection) -> outbox::Result<Worked> {
        let mut worked = self.keeper.work(connection).await?;
        if let Some(marker) = self.marker.as_mut().filter(|_| !worked.stands_by) {
            worked.has_more |= marker.work(connection).await?.has_more;
        }
        Ok(worked)
    }

    /// The next round tells the database what was found.
    pub fn tell(&mut self) {
        self.keeper.tell(self.marker.as_ref().and_then(Marker::trouble));
    }

    pub async fn close(self, connection: &mut PgConnection) -> outbox::Result<()> {
        self.keeper.close(connection).await
    }
}

pub async fn keeper(connection: &mut PgConnection, outbox: &Outbox) -> Keeping {
    Keeping::open(connection, outbox).await.unwrap()
}

/// Works until there is nothing more to do at once.
pub async fn keep(keeper: &mut Keeping, connection: &mut PgConnection) {
    while keeper.work(connection).await.unwrap().has_more {}
}
