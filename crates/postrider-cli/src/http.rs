//! What the relay shows over HTTP: `/metrics`, `/livez`, `/readyz`, `/healthz`.
//!
//! [`start_counting`] comes first in `run`: what a sink counts before it goes nowhere. Then [`serve`].

mod catalogue;
mod database;
mod health;
mod metrics;
mod process;
mod recorder;
mod server;
mod text;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use postrider::log::Servers;
use postrider_relay::{CaptureStatus, SinkStatus};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Alerts;
use crate::exit::Exit;
use crate::failure::Failure;
use database::Database;
pub(crate) use health::is_alive;
pub(crate) use recorder::start_counting;

/// What the sinks of this relay are doing, asked at each request.
pub(crate) type Status = Arc<dyn Fn() -> Vec<SinkStatus> + Send + Sync>;

/// What the server needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Loopback unless somebody says otherwise: there is no login here.
    pub(crate) listen: SocketAddr,
    pub(crate) limits: watch::Receiver<Limits>,
    /// How the triggers of the declared tables stand.
    pub(crate) captured: watch::Receiver<CaptureStatus>,
}

/// What numbers are compared with, by those who are woken by them. A reload changes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long the log keeps delivered events: says when the ring should have turned.
    pub(crate) retention: Duration,
    /// How large it may be, where that is limited.
    pub(crate) max_log_size: Option<u64>,
    pub(crate) alerts: Alerts,
}

/// The server at work.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Where it listens; tells the port if the settings said 0.
    pub(crate) address: SocketAddr,
    /// Ends after `shutdown`.
    pub(crate) task: JoinHandle<()>,
}

/// Listens, and answers until `shutdown` resolves. `database` is asked over a connection of its own.
pub(crate) async fn serve(
    settings: Settings,
    status: Status,
    database: Servers,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<Serving, Failure> {
    let wanted = settings.listen;
    let refused = || {
        format!("cannot listen on {wanted}; set http.listen to an address of this machine and a free port")
    };
    let listener = TcpListener::bind(wanted).await.map_err(|error| {
        // Whoever has the port may be about to end, as the one before us at a restart.
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let exit = if is_taken { Exit::Unavailable } else { Exit::Configuration };
        Failure::new(exit, anyhow::Error::new(error).context(refused()))
    })?;
    let address =
        listener.local_addr().with_context(refused).map_err(|e| Failure::new(Exit::Configuration, e))?;
    let shown = Shown {
        status,
        database: Arc::new(Database::new(&database)),
        limits: settings.limits,
        captured: settings.captured,
    };
    let task = tokio::spawn(server::run(listener, router(shown), shutdown));
    Ok(Serving { address, task })
}

/// What the answers are made from.
#[derive(Clone)]
struct Shown {
    status: Status,
    database: Arc<Database>,
    limits: watch::Receiver<Limits>,
    captured: watch::Receiver<CaptureStatus>,
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/healthz", get(health::healthz))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "there are /metrics, /livez, /readyz and /healthz?verbose\n")
        })
        .with_state(shown)
}

#[cfg(test)]
mod tests;
