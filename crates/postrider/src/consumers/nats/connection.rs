//! Connecting.

use std::sync::Arc;

use async_nats::jetstream::context::{Context, ContextBuilder, GetStreamError, GetStreamErrorKind};
use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use super::Nats;
use crate::consumer::Trouble;

/// A connection, and whether it was lost.
pub(super) async fn connect(source: &Nats) -> Result<(Context, watch::Receiver<bool>), Trouble> {
    let patience = source.timeout;
    let servers = source.url.split(',').map(|url| url.trim().parse()).collect::<Result<Vec<ServerAddr>, _>>();
    // The parser's own words may repeat the address.
    let servers =
        servers.map_err(|_| Trouble::wrong("the address is none of NATS: write nats://HOST:PORT"))?;
    let mut options = match &source.credentials {
        None => ConnectOptions::new(),
        Some(path) => ConnectOptions::with_credentials_file(path).await.map_err(|error| {
            Trouble::wrong(format!("cannot use the credentials in {}: {error}", path.display()))
        })?,
    };
    if let Some(ca) = &source.ca {
        options = options.add_root_certificates(ca.clone());
    }
    let (sender, down) = watch::channel(false);
    let sender = Arc::new(sender);
    let connecting = options
        .name("postrider")
        .connection_timeout(patience)
        .request_timeout(Some(patience))
        .ping_interval(patience)
        // Reconnecting is ours: what was in hand has to be known as lost.
        .max_reconnects(servers.len())
        .event_callback(move |event| {
            let sender = Arc::clone(&sender);
            async move {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    sender.send_replace(true);
                }
            }
        })
        .connect(servers);
    let client = match tokio::time::timeout(patience, connecting).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            let is_wrong = matches!(
                error.kind(),
                ConnectErrorKind::Authentication
                    | ConnectErrorKind::AuthorizationViolation
                    | ConnectErrorKind::ServerParse
            );
            return Err(if is_wrong { Trouble::wrong(error) } else { Trouble::away(error) });
        }
        Err(_) => return Err(Trouble::away("no server took a connection in time")),
    };
    Ok((ContextBuilder::new().timeout(patience).build(client), down))
}

pub(super) fn no_stream(error: GetStreamError, stream: &str) -> Trouble {
    match error.kind() {
        GetStreamErrorKind::Request => Trouble::away(error),
        GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => Trouble::wrong(error),
        // It may be made by whoever publishes, who may come later.
        GetStreamErrorKind::JetStream(_) => Trouble::away(format!("NATS has no stream `{stream}`: {error}")),
    }
}
