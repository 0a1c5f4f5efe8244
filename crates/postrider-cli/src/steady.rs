//! A connection for commands that stay: when it is lost, they wait until there is another one and go on.

use std::time::Duration;

use postrider::log::{self, Servers};
use sqlx::PgConnection;

use crate::connect::{self, Target};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// A connection that can be had again.
pub(crate) struct Steady {
    servers: Servers,
    connection: PgConnection,
}

impl Steady {
    /// The first time there is no waiting: the address may be wrong.
    pub(crate) async fn open(target: &Target) -> Result<Self, Failure> {
        let servers = target.options()?;
        let connection = connect::open(servers.clone()).await?;
        Ok(Self { servers, connection })
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Connects again, however long it takes, if the connection was lost over this error; else fails with it.
    pub(crate) async fn mend(&mut self, error: log::Error) -> Result<(), Failure> {
        if !error.is_disconnect() {
            return Err(error.into());
        }
        output::say(&format!("note: the connection is lost, waiting for another one: {}", cause(&error)));
        let mut pause = SHORTEST;
        self.connection = loop {
            match connect::open(self.servers.clone()).await {
                Ok(connection) => break connection,
                // Nobody there, not yet, or no room: later there may be.
                Err(failure) if failure.exit() == Exit::Unavailable => {}
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        };
        output::say("note: connected again");
        Ok(())
    }
}

/// What was said last, without the advice for those who end over it.
fn cause(error: &log::Error) -> String {
    match error {
        log::Error::Database(error) => log::advice::words(error),
        error => error.to_string(),
    }
}
