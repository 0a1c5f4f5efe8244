//! The log on standard error: lines for people or one JSON object per line, and never a password in either.

mod json;
mod redacted;

use std::env;
use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{self, MakeWriter};

use crate::exit::Exit;
use crate::failure::Failure;
use json::Json;
use redacted::Redacted;

const VARIABLE: &str = "POSTRIDER_LOG";

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people; coloured on a terminal
    #[default]
    Text,
    /// One object per line
    Json,
}

/// Logs from here on: what `POSTRIDER_LOG` asks for, else `default`.
pub(crate) fn start(format: Format, default: &str) -> Result<(), Failure> {
    let directives = env::var(VARIABLE).unwrap_or_else(|_| default.to_owned());
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        let error = anyhow::Error::new(error)
            .context(format!("the variable {VARIABLE} must be a filter, such as info or postrider=debug"));
        Failure::new(Exit::Configuration, error)
    })?;
    // https://no-color.org: set to anything but nothing.
    let wants_color = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let to = dispatch(format, filter, wants_color && io::stderr().is_terminal(), io::stderr);
    tracing::dispatcher::set_global_default(to).map_err(|error| Failure::new(Exit::Failed, error))
}

fn dispatch<W>(format: Format, filter: EnvFilter, color: bool, writer: W) -> Dispatch
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = fmt().with_env_filter(filter);
    match format {
        Format::Text => builder.with_ansi(color).with_writer(Redacted::new(writer)).finish().into(),
        Format::Json => builder.with_ansi(false).event_format(Json).with_writer(writer).finish().into(),
    }
}

fn fmt() -> fmt::SubscriberBuilder {
    tracing_subscriber::fmt()
}

#[cfg(test)]
mod tests;
