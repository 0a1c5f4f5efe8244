//! How a relay reaches its database beside reading: one pool, which all sinks share.

use std::time::Duration;

use postrider::log::{self, Servers, session};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{PgConnection, PgPool};

use crate::settings::RelaySettings;

async fn is_primary(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select not pg_is_in_recovery()").fetch_one(connection).await
}

/// Said once, because it is easily overlooked: only `verify-full` makes sure who answers.
pub(super) fn warn_if_unverified(settings: &RelaySettings) {
    for database in settings.database.each() {
        let host = database.get_host();
        let is_local = database.get_socket().is_some() || ["localhost", "127.0.0.1", "::1"].contains(&host);
        let mode = database.get_ssl_mode();
        if !is_local && !matches!(mode, PgSslMode::VerifyFull) {
            tracing::warn!(
                host,
                sslmode = ?mode,
                "the server's certificate is not verified, and with prefer the connection may not even be encrypted; set \
                 sslmode=verify-full and sslrootcert"
            );
        }
    }
}

pub(super) fn pool(settings: &RelaySettings) -> PgPool {
    PgPoolOptions::new()
        .max_connections(settings.connections)
        .acquire_timeout(Duration::from_secs(10))
        .idle_timeout(Duration::from_mins(1))
        // After a failover the address may lead elsewhere, while connections to a server that is a standby now stay open: it would
        // answer what was true a while ago.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_primary(connection)))
        .after_connect(|connection, _| {
            Box::pin(async move {
                let refused = || sqlx::Error::Protocol(log::Error::NotPrimary.to_string());
                is_primary(connection).await?.then_some(()).ok_or_else(refused)
            })
        })
        .connect_lazy_with(parking(&settings.database))
}

/// For the pool: where the primary was last found.
pub(crate) fn parking(servers: &Servers) -> PgConnectOptions {
    session::well_mannered(servers.last().clone().application_name("postrider (parking)"))
}
