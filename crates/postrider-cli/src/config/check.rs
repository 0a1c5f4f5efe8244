//! From what is written to what is meant: relations between values, and the settings that the rest of the program takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use postrider::log::Servers;
use postrider_relay::prepare::Preparer;
use postrider_relay::settings::{LogSettings as ReadingSettings, RelaySettings, Retry, SinkSettings};
use postrider_relay::sinks::Target;
use postrider_relay::units::{Size, Span};
use tracing_subscriber::EnvFilter;

use super::finding::Finding;
use super::raw::{Feed, File, Listen, Start};
use super::sinks::{Sink, file_of};
use super::tree::{Node, Place};
use super::{Alerts, Config, Depth, HttpSettings, LogSettings, outbox, tables};
use crate::connect;

/// The binary with its buffers does not fit into less.
const LEAST_MEMORY: u64 = 16_000_000;
/// A shorter lease is lost by a short stall.
const SHORTEST_LEASE: Duration = Duration::from_millis(500);
/// Every hour of it costs a slot's share of disk; more than this is a slip of the unit.
const LONGEST_RETENTION: Duration = Duration::from_hours(24 * 3660);

/// Eight empty slots with their indexes have half of it.
const LEAST_LOG: u64 = 1_000_000;

/// Looks at everything in the file that has to fit to something else in it.
pub(crate) struct Checker<'t> {
    pub(crate) tree: &'t Node,
    pub(crate) findings: Vec<Finding>,
}

/// A filter of which every bare word is a level: any other would be taken for the name of a module, and silence all the rest.
fn is_filter(level: &str) -> bool {
    let is_meant = |part: &str| {
        part.contains(['=', '[']) || part.trim().parse::<tracing::level_filters::LevelFilter>().is_ok()
    };
    EnvFilter::try_new(level).is_ok() && level.split(',').all(is_meant)
}

impl Checker<'_> {
    /// Where the first of these keys is given that is given at all.
    fn place(&self, paths: &[&[&str]]) -> Option<Place> {
        let entry = paths.iter().find_map(|path| self.tree.find(path))?;
        let is_value = !entry.value.is_null() && entry.value.entries().is_none();
        Some(if is_value { entry.value.place.clone() } else { entry.place.clone() })
    }

    pub(super) fn must(&mut self, holds: bool, paths: &[&[&str]], message: impl FnOnce() -> String) {
        if !holds {
            let place = self.place(paths);
            self.findings.push(Finding { place, ..Finding::new(message()) });
        }
    }

    /// Relations and bounds.
    pub(crate) fn relations(&mut self, file: &File) {
        self.log(file);
        self.longest(file);
        let memory = file.relay.memory_limit;
        self.must(memory.0 >= LEAST_MEMORY, &[&["relay", "memory_limit"]], || {
            format!("`relay.memory_limit` is {memory}; a relay needs at least {}", Size(LEAST_MEMORY))
        });
        let connections = file.relay.connections;
        self.must((1..=1000).contains(&connections), &[&["relay", "connections"]], || {
            format!("`relay.connections` is {connections}; take 1 to 1000")
        });
        let name = file.relay.name.as_deref();
        self.must(name.is_none_or(is_title), &[&["relay", "name"]], || {
            "`relay.name` must be 1 to 63 characters without line breaks".to_owned()
        });
        let super::raw::Alerts { lag, stuck } = file.alerts;
        self.must(!lag.0.is_zero(), &[&["alerts", "lag"]], || {
            "`alerts.lag` must be more than 0ms".to_owned()
        });
        self.must(lag <= stuck, &[&["alerts", "stuck"], &["alerts", "lag"]], || {
            format!("`alerts.stuck` ({stuck}) must not be shorter than `alerts.lag` ({lag})")
        });
        self.must(is_filter(&file.logs.level), &[&["logs", "level"]], || {
            "`logs.level` must be a filter, such as info or info,postrider_relay=debug".to_owned()
        });
        for (name, sink) in &file.sinks {
            self.feed(name, &sink.feed);
        }
        self.exclusive(file);
        self.tables(file);
        self.outbox(file);
    }

    /// Beyond these it is a slip of the unit.
    fn longest(&mut self, file: &File) {
        const HOUR: Duration = Duration::from_hours(1);
        const DAY: Duration = Duration::from_hours(24);
        const YEAR: Duration = Duration::from_hours(24 * 365);
        let mut spans = vec![
            (vec!["log", "lease"], file.log.lease, HOUR),
            (vec!["log", "patience"], file.log.patience, HOUR),
            (vec!["relay", "drain"], file.relay.drain, DAY),
            (vec!["alerts", "lag"], file.alerts.lag, YEAR),
            (vec!["alerts", "stuck"], file.alerts.stuck, YEAR),
        ];
        for (name, sink) in &file.sinks {
            let retry = &sink.feed.retry;
            spans.push((vec!["sinks", name, "retry", "first"], retry.first, YEAR));
            spans.push((vec!["sinks", name, "retry", "max"], retry.max, YEAR));
        }
        for (path, span, most) in spans {
            self.must(span.0 <= most, &[&path], || {
                format!("`{}` ({span}) must not be longer than {}", path.join("."), Span(most))
            });
        }
    }

    fn log(&mut self, file: &File) {
        let log = &file.log;
        let (min, max, lease) = (log.idle.min, log.idle.max, log.lease);
        self.must(!min.0.is_zero(), &[&["log", "idle", "min"]], || {
            "`log.idle.min` must be more than 0ms".to_owned()
        });
        self.must(min <= max, &[&["log", "idle", "min"], &["log", "idle", "max"]], || {
            format!("`log.idle.min` ({min}) must not be longer than `log.idle.max` ({max})")
        });
        self.must(lease.0 >= SHORTEST_LEASE, &[&["log", "lease"]], || {
            format!("`log.lease` ({lease}) must be at least {}", Span(SHORTEST_LEASE))
        });
        self.must(max <= lease, &[&["log", "idle", "max"], &["log", "lease"]], || {
            format!("`log.idle.max` ({max}) must not be longer than `log.lease` ({lease})")
        });
        let patience = log.patience;
        self.must(patience.0 >= Duration::from_secs(1), &[&["log", "patience"]], || {
            format!("`log.patience` ({patience}) must be at least 1s")
        });
        let (sweep, retention) = (log.sweep, log.retention);
        self.must(sweep.0 >= Duration::from_millis(100), &[&["log", "sweep"]], || {
            format!("`log.sweep` ({sweep}) must be at least 100ms")
        });
        self.must(retention.0 <= LONGEST_RETENTION, &[&["log", "retention"]], || {
            format!("`log.retention` ({retention}) must not be longer than {}", Span(LONGEST_RETENTION))
        });
        // The ring has eight slots and is turned every seventh of the retention.
        self.must(sweep.0 <= retention.0 / 7, &[&["log", "retention"], &["log", "sweep"]], || {
            format!("`log.retention` ({retention}) must be at least seven times `log.sweep` ({sweep})")
        });
        self.must(log.max_slot_size.is_none_or(|size| size.0 > 0), &[&["log", "max_slot_size"]], || {
            "`log.max_slot_size` must be more than 0B; leave it out for no limit".to_owned()
        });
        self.must(
            log.max_log_size.is_none_or(|size| size.0 >= LEAST_LOG),
            &[&["log", "max_log_size"]],
            || format!("`log.max_log_size` must be at least {}; leave it out for no limit", Size(LEAST_LOG)),
        );
    }

    fn feed(&mut self, name: &str, feed: &Feed) {
        let at = |key: &'static str| ["sinks", name, key];
        let (batch, flight) = (feed.max_batch, feed.max_in_flight);
        self.must(flight > 0, &[&at("max_in_flight")], || "`max_in_flight` must be at least 1".to_owned());
        self.must(batch > 0, &[&at("max_batch")], || "`max_batch` must be at least 1".to_owned());
        self.must(batch <= flight.max(1), &[&at("max_batch"), &at("max_in_flight")], || {
            format!("`max_batch` ({batch}) must not be more than `max_in_flight` ({flight})")
        });
        let retry = &feed.retry;
        let at = |key: &'static str| ["sinks", name, "retry", key];
        self.must(retry.max_attempts > 0, &[&at("max_attempts")], || {
            "`retry.max_attempts` must be at least 1".to_owned()
        });
        self.must(!retry.first.0.is_zero(), &[&at("first")], || {
            "`retry.first` must be more than 0ms".to_owned()
        });
        self.must(retry.first <= retry.max, &[&at("first"), &at("max")], || {
            format!("`retry.first` ({}) must not be longer than `retry.max` ({})", retry.first, retry.max)
        });
        self.must((1.0..=1000.0).contains(&retry.factor), &[&at("factor")], || {
            format!("`retry.factor` is {}; take 1 to 1000: pauses must not become shorter", retry.factor)
        });
    }

    /// Two sinks cannot both hold what only one can.
    fn exclusive(&mut self, file: &File) {
        for (name, sink) in &file.sinks {
            let is_named = super::file_of(&sink.target).is_none_or(|path| !path.as_os_str().is_empty());
            self.must(is_named, &[&["sinks", name, "file", "path"]], || {
                format!("`sinks.{name}.file.path` is empty: it names the file")
            });
            let kind = sink.target.kind();
            for (key, why) in sink.target.objections() {
                self.must(false, &[&["sinks", name, kind, key]], || {
                    format!("`sinks.{name}.{kind}.{key}`: {why}")
                });
            }
        }
        let sinks: Vec<(&String, &Sink)> =
            file.sinks.iter().filter(|(_, sink)| sink.target.is_exclusive()).collect();
        for (number, (name, sink)) in sinks.iter().enumerate() {
            let (kind, place) = (sink.target.kind(), place_of(&sink.target));
            let is_same = |other: &Target| other.kind() == kind && place_of(other) == place;
            if let Some((first, _)) = sinks[..number].iter().find(|(_, other)| is_same(&other.target)) {
                self.must(false, &[&["sinks", name, kind]], || {
                    format!("the sinks `{first}` and `{name}` both write to the same {kind}")
                });
            }
        }
    }

    /// The database, by the file, a flag, a variable or the variables of libpq.
    pub(super) fn database(&mut self, file: &File, depth: Depth) -> Option<Servers> {
        // With only the syntax to look at, the database may be named where the file will be used.
        if file.database.is_none() && depth == Depth::Syntax {
            return None;
        }
        let failure = match connect::options(file.database.as_deref()) {
            Ok(options) => return Some(options),
            Err(failure) => failure,
        };
        let is_filled_in = self.tree.entry("database").is_some_and(|entry| entry.value.written.is_some());
        let message = if is_filled_in {
            // The usual words name the parameter that is wrong, which may be the end of a password.
            "`database`: with its variables filled in this is no URL that can be used; it must be postgres://USER@HOST:PORT/NAME"
                .to_owned()
        } else {
            failure.to_string().trim_start_matches("error: ").to_owned()
        };
        self.must(false, &[&["database"]], || message);
        None
    }

    /// Compiles what is an expression or a template.
    fn expressions(&mut self, settings: &SinkSettings) {
        for error in Preparer::objections(settings) {
            let path = ["sinks", settings.name.as_str(), error.key];
            let written = self.tree.find(&path).and_then(|entry| entry.value.written.as_ref());
            let message = match written {
                Some(written) => format!(
                    "`{}` cannot be used; it comes from {}, so the reason is not shown",
                    path.join("."),
                    written.from.join(", ")
                ),
                None => format!("`{}`: {}", path.join("."), error.message),
            };
            self.must(false, &[&path, &path[..2]], || message);
        }
    }

    /// What the rest of the program takes. Of use only if nothing was found.
    pub(crate) fn settings(&mut self, file: &File, depth: Depth) -> Option<Config> {
        let database = self.database(file, depth);
        let mut sinks = Vec::new();
        for (name, sink) in &file.sinks {
            let settings = settings_of(name, sink);
            if depth != Depth::Syntax {
                self.expressions(&settings);
            }
            sinks.push(settings);
        }
        let mut relay =
            RelaySettings::new(database?.map(|options| options.application_name("postrider")), sinks);
        if let Some(name) = &file.relay.name {
            relay.name.clone_from(name);
        }
        relay.memory_limit = file.relay.memory_limit.0;
        relay.drain = file.relay.drain.0;
        relay.connections = file.relay.connections;
        relay.log = ReadingSettings {
            retention: file.log.retention.0,
            max_slot_size: file.log.max_slot_size.map(|size| size.0),
            max_log_size: file.log.max_log_size.map(|size| size.0),
            lease: file.log.lease.0,
            idle: (file.log.idle.min.0, file.log.idle.max.0),
            hint: file.log.hint.into(),
            sweep: file.log.sweep.0,
            patience: file.log.patience.0,
            standbys: file.log.standbys,
        };
        relay.tables = tables::declared(file);
        relay.outboxes = outbox::declared(file);
        let http = match file.http.listen {
            Listen::Off => None,
            Listen::On(listen) => Some(HttpSettings { listen }),
        };
        let alerts = Alerts { lag: file.alerts.lag.0, stuck: file.alerts.stuck.0 };
        let logs = LogSettings { format: file.logs.format.into(), level: file.logs.level.clone() };
        Some(Config { relay, http, alerts, logs })
    }
}

fn settings_of(name: &str, sink: &Sink) -> SinkSettings {
    let Feed { ordering, envelope, max_in_flight, max_batch, require_durability, .. } = sink.feed;
    let start = match sink.feed.start {
        Start::Now => postrider::log::Start::Now,
        Start::Earliest => postrider::log::Start::Earliest,
        Start::At(time) => postrider::log::Start::At(time),
    };
    let retry = &sink.feed.retry;
    let retry = Retry {
        max_attempts: retry.max_attempts,
        first: retry.first.0,
        factor: retry.factor,
        max: retry.max.0,
    };
    SinkSettings {
        start,
        ordering,
        envelope,
        source: sink.feed.source.clone(),
        filter: sink.feed.filter.clone(),
        transform: sink.feed.transform.clone(),
        route: sink.feed.route.clone(),
        retry,
        max_in_flight,
        max_batch,
        require_durability,
        ..SinkSettings::new(name, sink.target.clone())
    }
}

/// The file that a sink writes, however its path is written: `x`, `./x` and a path by way of a link are one.
fn place_of(target: &Target) -> Option<PathBuf> {
    let path = file_of(target)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().or_else(|_| std::path::absolute(folder)).ok()?;
    Some(path.file_name().map_or_else(|| folder.clone(), |name| folder.join(name)))
}

/// Short enough to be shown in a column, and printable.
fn is_title(text: &str) -> bool {
    (1..=63).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}
