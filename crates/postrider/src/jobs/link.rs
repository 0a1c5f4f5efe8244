//! A connection of a worker that comes back when it is lost.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

use super::error::{Error, Result};
use crate::log::session::well_mannered;
use crate::schema;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Link {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    pause: Duration,
}

impl Link {
    pub(super) fn new(options: &PgConnectOptions, what: &str) -> Self {
        let options = well_mannered(options.clone().application_name(&format!("postrider worker ({what})")));
        Self { options, connection: None, pause: FIRST_PAUSE }
    }

    /// The connection, opened if there is none.
    pub(super) async fn get(&mut self) -> Result<&mut PgConnection> {
        if self.connection.is_none() {
            let mut connection = self.options.connect().await?;
            schema::check_version(&mut connection).await?;
            self.connection = Some(connection);
        }
        self.pause = FIRST_PAUSE;
        match &mut self.connection {
            Some(connection) => Ok(connection),
            None => Err(Error::Database(sqlx::Error::PoolClosed)),
        }
    }

    /// Whatever failed: the connection is given up, and the next attempt is not at once.
    pub(super) async fn lost(&mut self, error: &Error) {
        tracing::warn!(%error, "a worker's connection failed; connecting again");
        self.connection = None;
        let jitter = 0.5 + rand::random::<f64>();
        tokio::time::sleep(self.pause.mul_f64(jitter)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
