//! The metrics that are made when somebody asks, and the table of all of them in `docs/operating.md`.

use postrider_relay::telemetry::{Metric, Shape};

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, shape: Shape::Gauge, labels, help }
}

const NONE: &[&str] = &[];
const SINK: &[&str] = &["sink"];

pub(super) const BUILD_INFO: Metric =
    gauge("postrider_build_info", &["version"], "Always 1; the label says which version runs");
pub(super) const SINK_INFO: Metric =
    gauge("postrider_sink_info", &["sink", "kind"], "Always 1; the label says what kind of sink it is");
pub(super) const SINK_STATE: Metric = gauge(
    "postrider_sink_state",
    &["sink", "state"],
    "1 for the state the sink is in, 0 for the others: starting, running, standby, waiting, paused, disconnected, failed, stopped",
);
pub(super) const SINK_SILENT: Metric = gauge(
    "postrider_sink_silent_seconds",
    SINK,
    "Since the sink's loop last turned; beyond 30 it is stuck and /livez fails",
);
pub(super) const DATABASE_UP: Metric =
    gauge("postrider_database_up", NONE, "1 if the database answers; if 0, what comes from it is left out");
pub(super) const CLOCK_OFFSET: Metric = gauge(
    "postrider_database_clock_offset_seconds",
    NONE,
    "How far the database's clock is ahead of this relay's; lag since the transaction is wrong by it",
);
pub(super) const SCRAPE_FAILED: Metric = gauge(
    "postrider_scrape_failed",
    &["part"],
    "1 if this part could not be asked from the database: backlog, lag, parked, ring, transactions, capture, outbox",
);
pub(super) const BACKLOG: Metric = gauge(
    "postrider_backlog_events",
    SINK,
    "Committed events that the sink has not settled; counted to 10,000 per lane",
);
pub(super) const BACKLOG_EXACT: Metric =
    gauge("postrider_backlog_is_exact", SINK, "1 if the backlog is exact, 0 if it is at least that");
pub(super) const OLDEST: Metric = gauge(
    "postrider_oldest_event_age_seconds",
    SINK,
    "Age of the oldest committed event that the sink has not settled; 0 if there is none",
);
pub(super) const PARKED: Metric = gauge(
    "postrider_parked_events",
    &["sink", "state"],
    "Parked events, counted to 10,000: waiting for their next attempt, behind another of their key, dead",
);
pub(super) const RING_AGE: Metric =
    gauge("postrider_ring_slot_age_seconds", NONE, "Since the slot that is written now was begun");
pub(super) const RING_FILLED: Metric =
    gauge("postrider_ring_filled_slots", NONE, "Slots of the ring that hold events, of 8");
pub(super) const RING_BYTES: Metric =
    gauge("postrider_ring_bytes", NONE, "Size of all slots with their indexes");
pub(super) const RING_HELD: Metric = gauge(
    "postrider_ring_held_slots",
    SINK,
    "Closed slots that cannot be emptied before the sink has settled them",
);
pub(super) const LOG_LIMIT: Metric = gauge(
    "postrider_log_limit_bytes",
    NONE,
    "log.max_log_size, left out where there is none; above it delivered events go before their retention is over",
);
pub(super) const RETENTION: Metric = gauge(
    "postrider_retention_seconds",
    NONE,
    "How long delivered events are kept; a slot is due after a seventh of it",
);
pub(super) const THRESHOLD: Metric = gauge(
    "postrider_alert_threshold_seconds",
    &["alert"],
    "The age of an event from which it is an alarm: alerts.lag and alerts.stuck of the configuration",
);
pub(super) const TRANSACTION_AGE: Metric = gauge(
    "postrider_oldest_transaction_age_seconds",
    &["kind"],
    "Age of the oldest open transaction in the database: session or prepared; its own events wait for it",
);
pub(super) const CAPTURE_STATE: Metric = gauge(
    "postrider_capture_table_state",
    &["table", "state"],
    "1 for the state of a declared table's trigger, 0 for the others: installed, missing, outdated, disabled; left out until it was looked at",
);
pub(super) const CAPTURE_SWEPT: Metric = gauge(
    "postrider_capture_sweep_age_seconds",
    NONE,
    "Since the triggers of the declared tables were last looked at; left out where there are none",
);
pub(super) const CAPTURE_FAILURES: Metric = gauge(
    "postrider_capture_failures",
    &["table"],
    "Writes whose events could not be recorded and wait for postrider recapture, counted to 10,000 in all",
);
pub(super) const OUTBOX_MISFITS: Metric = gauge(
    "postrider_outbox_misfits",
    &["table"],
    "Rows of an outbox table that cannot become events and stay where they are, counted to 1,000",
);
pub(super) const CPU: Metric = Metric {
    name: "process_cpu_seconds_total",
    shape: Shape::Counter,
    labels: NONE,
    help: "CPU time of this process",
};
pub(super) const RESIDENT: Metric = gauge(
    "process_resident_memory_bytes",
    NONE,
    "Memory of this process, what relay.memory_limit is compared with",
);
pub(super) const VIRTUAL: Metric =
    gauge("process_virtual_memory_bytes", NONE, "Address space of this process");
pub(super) const OPEN_FDS: Metric = gauge("process_open_fds", NONE, "Open file descriptors");
pub(super) const MAX_FDS: Metric = gauge("process_max_fds", NONE, "The most file descriptors it may open");
pub(super) const STARTED: Metric =
    gauge("process_start_time_seconds", NONE, "When it started, in seconds since 1970");

/// Everything beside [`postrider_relay::telemetry::METRICS`].
#[cfg(test)]
pub(super) const METRICS: &[Metric] = &[
    BACKLOG,
    BACKLOG_EXACT,
    OLDEST,
    PARKED,
    SINK_STATE,
    SINK_SILENT,
    SINK_INFO,
    RING_AGE,
    RING_FILLED,
    RING_BYTES,
    RING_HELD,
    LOG_LIMIT,
    RETENTION,
    THRESHOLD,
    TRANSACTION_AGE,
    CAPTURE_STATE,
    CAPTURE_SWEPT,
    CAPTURE_FAILURES,
    OUTBOX_MISFITS,
    DATABASE_UP,
    CLOCK_OFFSET,
    SCRAPE_FAILED,
    BUILD_INFO,
    CPU,
    RESIDENT,
    VIRTUAL,
    OPEN_FDS,
    MAX_FDS,
    STARTED,
];

/// As it stands in `docs/operating.md`.
#[cfg(test)]
pub(super) fn table() -> String {
    use std::fmt::Write as _;

    let mut table = "| metric | kind | labels | says |\n|---|---|---|---|\n".to_owned();
    for metric in postrider_relay::telemetry::METRICS.iter().chain(METRICS) {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (shape, labels) = (super::text::shape(metric.shape), labels.join(" "));
        let _ = writeln!(table, "| `{}` | {shape} | {labels} | {} |", metric.name, metric.help);
    }
    table
}
