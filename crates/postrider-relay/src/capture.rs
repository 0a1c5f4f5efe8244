//! Looks after the triggers of declared and adopted tables: one that is missing, switched off or outdated is an alarm.

use std::sync::Arc;
use std::time::SystemTime;

use postrider::capture::{self, Alarm};
use postrider::outbox;
use sqlx::PgPool;
use tokio::sync::watch;

use crate::settings::RelaySettings;

/// How the triggers of the declared tables stand.
#[derive(Debug, Clone, Default)]
pub struct CaptureStatus {
    /// The declared and adopted tables.
    pub tables: Vec<String>,
    /// Those that are not captured as declared. Empty: all is well, if anybody has looked.
    pub alarms: Vec<Alarm>,
    /// When somebody last looked.
    pub swept_at: Option<SystemTime>,
}

/// Looks at once and then every `log.sweep`, for as long as the relay runs. Every relay does: it costs a few lookups in the catalogs.
pub(crate) async fn look_after(
    settings: Arc<RelaySettings>,
    pool: PgPool,
    shown: Arc<watch::Sender<CaptureStatus>>,
) {
    let declared = settings.tables.iter().map(|table| table.name.clone());
    let tables: Vec<String> =
        declared.chain(settings.outboxes.iter().map(|outbox| outbox.name.clone())).collect();
    shown.send_modify(|status| {
        status.alarms.retain(|alarm| tables.contains(&alarm.table));
        status.tables = tables;
    });
    if settings.tables.is_empty() && settings.outboxes.is_empty() {
        return;
    }
    let mut every = tokio::time::interval(settings.log.sweep);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match sweep(&pool, &settings).await {
            Ok(alarms) => tell(&shown, alarms),
            // The pipelines say louder that the database is away. What was found stays in sight.
            Err(error) => tracing::debug!(%error, "the triggers of declared tables could not be looked at"),
        }
    }
}

async fn sweep(pool: &PgPool, settings: &RelaySettings) -> outbox::Result<Vec<Alarm>> {
    let mut connection = pool.acquire().await?;
    let mut alarms = capture::sweep(&mut connection, &settings.tables).await?;
    alarms.extend(outbox::alarms(&mut connection, &settings.outboxes).await?);
    Ok(alarms)
}

/// Each change is a line of the log.
fn tell(shown: &watch::Sender<CaptureStatus>, alarms: Vec<Alarm>) {
    let before = shown.borrow().alarms.clone();
    for Alarm { table, state, reason } in alarms.iter().filter(|alarm| !before.contains(alarm)) {
        tracing::error!(
            table,
            state = state.word(),
            "a declared table is not captured as declared: {reason}"
        );
    }
    for Alarm { table, .. } in
        before.iter().filter(|old| !alarms.iter().any(|alarm| alarm.table == old.table))
    {
        tracing::info!(table, "is captured as declared again");
    }
    shown.send_modify(|status| {
        status.alarms = alarms;
        status.swept_at = Some(SystemTime::now());
    });
}
