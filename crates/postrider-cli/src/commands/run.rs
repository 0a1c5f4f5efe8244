//! `postrider run`: carries events until it is told to stop.

mod attention;
mod begun;
mod durability;
mod once;
mod signals;

use std::sync::Arc;

use clap::Args;
use postrider::log::Servers;
use postrider::schema;
use postrider_relay::units::Span;
use postrider_relay::{Relay, RelayError};
use tokio::sync::{oneshot, watch};

use self::attention::Attention;
use self::signals::Signal;
pub(crate) use self::signals::Signals;
use crate::config::{self, Config, HttpSettings, Overrides, Source};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::http::{self, Limits, Serving};
use crate::logging;

/// Carry events to the sinks until told to stop
///
/// Any number of relays may run with the same configuration: they share the lanes among each other, and when one dies the others take
/// over. SIGTERM and Ctrl-C settle what was sent and hand the lanes back; a second one stops at once. SIGHUP reads the configuration
/// again: it is taken as a whole or not at all; only a new http.listen, and another database for health and metrics, take a restart, which is said.
#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    overrides: Overrides,

    /// Deliver what is committed now, say how many events each sink got, and end
    ///
    /// A sink to which nothing is owed is not waited for: that it cannot be reached is no failure then. `postrider config check --depth
    /// environment` finds out.
    #[arg(long)]
    once: bool,

    /// With --once: how long a sink or the database may be unavailable before that is the end (exit status 69)
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "once")]
    patience: Span,
}

impl Run {
    /// `signals` are heard from the first moment on: what is done before the relay works takes its time too.
    pub(crate) async fn run(self, signals: Signals, json: bool) -> Result<Exit, Failure> {
        let mut attention = Attention::new(signals);
        let Some(config) = attention.during(self.prepare(), || true).await else {
            return Ok(if self.once { Exit::Failed } else { Exit::Fine });
        };
        let config = config?;
        if self.once {
            return once::run(config, self.patience.0, attention.signals, json).await;
        }
        http::start_counting();
        let mut relay = Relay::start(config.relay.clone()).map_err(failure)?;
        let (close, closed) = oneshot::channel::<()>();
        let (limits, shown) = watch::channel(limits(&config));
        let serving = serve(&config, &relay, shown, closed).await?;
        let fixed = Fixed::of(&config);
        attention.supervisor.ready();
        let watcher = relay.watcher();
        let is_alive = || http::is_alive(&watcher());
        let ended = loop {
            let signal = tokio::select! {
                signal = attention.next(is_alive) => signal,
                error = relay.ended() => break Some(error),
            };
            if signal == Signal::Stop {
                break None;
            }
            attention.supervisor.reloading();
            let reload = self.reload(&mut relay, &limits, &fixed);
            if attention.during(reload, is_alive).await.is_none() {
                break None;
            }
            attention.supervisor.ready();
        };
        attention.supervisor.stopping();
        tracing::info!(
            "stopping: what was sent is settled and the lanes are handed back; another signal ends it at once"
        );
        let is_settled = relay.stop_or(attention.signals.second()).await;
        drop(close);
        if let Some(Serving { task, .. }) = serving {
            let _ = task.await;
        }
        match ended {
            None if is_settled => Ok(Exit::Fine),
            None => Ok(Exit::Failed),
            Some(error) => Err(failure(error)),
        }
    }

    /// The configuration, and whether it can be worked with.
    async fn prepare(&self) -> Result<Config, Failure> {
        let config = config::load(&self.source, &self.overrides)?;
        set_logs(&config)?;
        state(&config);
        has_sinks(&config)?;
        durability::require(&config.relay.sinks).await?;
        begun::warn(&config, &self.overrides).await;
        Ok(config)
    }

    /// Reads the configuration again. Answers what only a restart would take.
    async fn take(
        &self,
        relay: &mut Relay,
        shown: &watch::Sender<Limits>,
        fixed: &Fixed,
    ) -> Result<Vec<&'static str>, Failure> {
        let config = config::load_anew(&self.source, &self.overrides)?;
        has_sinks(&config)?;
        durability::require(&config.relay.sinks).await?;
        let new = Fixed::of(&config);
        if !new.database.is_same(&fixed.database) {
            // One without the log in it would be the end of the relay.
            schema::check_version(&mut connect::open(config.relay.database.clone()).await?).await?;
        }
        set_logs(&config)?;
        let limits = limits(&config);
        relay.reload(config.relay).await.map_err(failure)?;
        shown.send_replace(limits);
        Ok(fixed.changed(&new))
    }

    /// All or nothing: what cannot be taken is reported, and everything goes on as before.
    async fn reload(&self, relay: &mut Relay, shown: &watch::Sender<Limits>, fixed: &Fixed) {
        match self.take(relay, shown, fixed).await {
            Ok(left) => {
                tracing::info!("the new configuration is in effect");
                for key in left {
                    tracing::warn!(key, "takes effect after a restart; until then the old value stays");
                }
            }
            Err(failure) => {
                tracing::error!("the new configuration is not taken, the old one stays in effect: {failure}");
            }
        }
    }
}

/// A relay that carries nothing anywhere would be healthy for ever: the file is another one, most probably, or not all of it is there yet.
fn has_sinks(config: &Config) -> Result<(), Failure> {
    if config.relay.sinks.is_empty() {
        return Err(Failure::configuration(
            "there is no sink: declare one under `sinks` in postrider.yaml (`--config PATH` names another file), or say --to stdout",
        ));
    }
    Ok(())
}

/// What only a new process takes: the server of health and metrics is begun once, with a database of its own to ask.
struct Fixed {
    http: Option<HttpSettings>,
    database: Servers,
}

impl Fixed {
    fn of(config: &Config) -> Self {
        Self { http: config.http, database: config.relay.database.clone() }
    }

    /// The keys that are another in `new`.
    fn changed(&self, new: &Self) -> Vec<&'static str> {
        let is_served = self.http.is_some();
        [
            ("http.listen", self.http != new.http),
            ("database, for health and metrics", is_served && !self.database.is_same(&new.database)),
        ]
        .into_iter()
        .filter_map(|(key, is_changed)| is_changed.then_some(key))
        .collect()
    }
}

fn set_logs(config: &Config) -> Result<(), Failure> {
    logging::set(config.logs.format, &config.logs.level)
}

/// What an operator wants to see in the first lines.
fn state(config: &Config) {
    /// Reading, settling, listening.
    const PER_SINK: usize = 3;
    /// Keeping it; then two that mark rows, or one that moves and marks and one that listens.
    const PER_OUTBOX: usize = 3;
    let settings = &config.relay;
    let sinks: Vec<String> =
        settings.sinks.iter().map(|sink| format!("{} ({})", sink.name, sink.target.kind())).collect();
    let for_metrics = usize::from(config.http.is_some());
    let connections = settings.sinks.len() * PER_SINK
        + settings.connections as usize
        + for_metrics
        + settings.outboxes.len() * PER_OUTBOX;
    tracing::info!(
        relay = settings.name,
        sinks = sinks.join(", "),
        connections,
        memory_limit = settings.memory_limit,
        "starting; so many connections to the database at most"
    );
}

async fn serve(
    config: &Config,
    relay: &Relay,
    limits: watch::Receiver<Limits>,
    closed: oneshot::Receiver<()>,
) -> Result<Option<Serving>, Failure> {
    let Some(http) = config.http else { return Ok(None) };
    let settings = http::Settings { listen: http.listen, limits, captured: relay.captured() };
    let closed = async move { drop(closed.await) };
    let serving =
        http::serve(settings, Arc::new(relay.watcher()), config.relay.database.clone(), closed).await?;
    tracing::info!(address = %serving.address, "metrics and health are served");
    Ok(Some(serving))
}

fn limits(config: &Config) -> Limits {
    let log = &config.relay.log;
    Limits { retention: log.retention, max_log_size: log.max_log_size, alerts: config.alerts }
}

fn failure(error: RelayError) -> Failure {
    match error {
        RelayError::Log(error) => error.into(),
        error @ (RelayError::Sink { .. } | RelayError::SameName { .. }) => {
            Failure::new(Exit::Configuration, error)
        }
        error @ RelayError::Gone { .. } => Failure::new(Exit::Unavailable, error),
        error => Failure::new(Exit::Failed, error),
    }
}
