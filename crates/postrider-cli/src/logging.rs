//! The log on standard error: lines for people or one JSON object per line, and never a password in either.
//!
//! It starts before the configuration is read, because reading may have something to say, and is [`set`] afterwards.

mod json;
mod text;

use std::env;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::exit::Exit;
use crate::failure::Failure;
use json::Json;
use text::Text;

const VARIABLE: &str = "POSTRIDER_LOG";

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Format {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// One object per line.
    Json,
}

/// Changes how and what is logged.
type Change = Box<dyn Fn(Format, EnvFilter) + Send + Sync>;
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Logs from here on: what `POSTRIDER_LOG` asks for, else warnings and errors, as text.
pub(crate) fn start() -> Result<(), Failure> {
    // https://no-color.org: set to anything but nothing.
    let wants_color = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (to, change) = dispatch(filter("warn")?, wants_color && io::stderr().is_terminal(), io::stderr);
    tracing::dispatcher::set_global_default(to).map_err(|error| Failure::new(Exit::Failed, error))?;
    let _ = CHANGE.set(change);
    Ok(())
}

/// Logs in this format and at this level (`info`, `postrider=debug`) from here on; `POSTRIDER_LOG` still has the last word.
pub(crate) fn set(format: Format, level: &str) -> Result<(), Failure> {
    let filter = filter(level)?;
    if let Some(change) = CHANGE.get() {
        change(format, filter);
    }
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, Failure> {
    let refused = |error, place: &str| {
        let error = anyhow::Error::new(error)
            .context(format!("{place} must be a filter, such as info or postrider=debug"));
        Failure::new(Exit::Configuration, error)
    };
    match env::var(VARIABLE) {
        Ok(directives) => EnvFilter::try_new(hushed(&directives))
            .map_err(|error| refused(error, &format!("the variable {VARIABLE}"))),
        Err(_) => EnvFilter::try_new(hushed(level)).map_err(|error| refused(error, "the log level")),
    }
}

/// What a client library says about a connection, we say too, with a remedy; who wants it asks for it by name. And lapin shows
/// passwords and messages.
fn hushed(level: &str) -> String {
    let mut directives = level.to_owned();
    for library in ["async_nats", "lapin", "sqlx"] {
        if !level.contains(library) {
            directives = format!("{directives},{library}=off");
        }
    }
    directives
}

fn dispatch<W>(filter: EnvFilter, color: bool, writer: W) -> (Dispatch, Change)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let is_json = Arc::new(AtomicBool::new(false));
    let builder = tracing_subscriber::fmt()
        .with_ansi(color)
        .event_format(Either { is_json: Arc::clone(&is_json), text: Text::new(color) })
        .with_writer(writer)
        .with_env_filter(filter)
        .with_filter_reloading();
    let filters = builder.reload_handle();
    let change = move |format, filter| {
        is_json.store(format == Format::Json, Ordering::Relaxed);
        if let Err(error) = filters.reload(filter) {
            tracing::warn!(%error, "the level of the log stays as it was");
        }
    };
    (builder.finish().into(), Box::new(change))
}

/// The format that was set last.
struct Either {
    is_json: Arc<AtomicBool>,
    text: Text,
}

impl<S, N> FormatEvent<S, N> for Either
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        to: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        if self.is_json.load(Ordering::Relaxed) {
            Json.format_event(context, to, event)
        } else {
            self.text.format_event(context, to, event)
        }
    }
}

#[cfg(test)]
mod tests;
