//! `postrider status`: how delivery stands, from the database alone.

mod gather;
mod print;
mod state;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use postrider::{log, schema};
use postrider_relay::units::Span;
use sqlx::PgConnection;

use super::captured::{self, Captured, Tables};
use crate::config;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::steady::Steady;

pub(crate) use self::gather::{Delivery, Seen, Sink, gather};
pub(crate) use self::state::{STUCK, State, state};

/// Show how delivery stands: each sink, its backlog and who carries it, and the ring
///
/// Asks only the database, so it is right whether or not a relay runs; what keeps a sink from taking events its relays write down there with
/// their heartbeat. Any role that may see the views will do. Counts stop at 10,000 events for each lane; beyond that "at least" is
/// said. Exits with 2 if something is wrong: a sink that takes nothing or has no relay, dead events, events that wait for more than five
/// minutes, a ring that cannot turn, a log above `log.max_log_size` that cannot be shortened, a
/// declared table that is not captured as declared, events that could not be recorded, rows of an outbox table that cannot become events. Where there is a configuration file, a sink that is not in it and that no relay carries is orphaned.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider status
  postrider status --lanes                       who holds which lane
  postrider status --watch                       again every two seconds
  postrider status --json | jq '.sinks[] | select(.trouble)'")]
pub(crate) struct Status {
    #[command(flatten)]
    target: Target,

    /// Look again and again, every two seconds or as often as given, 100ms at least, also after the database was away
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s", require_equals = true, value_parser = pause)]
    watch: Option<Span>,

    /// Show each lane
    #[arg(long)]
    lanes: bool,
}

impl Status {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let outline = config::outline(&self.target.source)?;
        let tables = captured::declared(&self.target.source);
        let mut steady = Steady::open(&self.target).await?;
        schema::check_version(steady.connection()).await?;
        let redraw = self.watch.is_some() && io::stdout().is_terminal() && !json;
        loop {
            let (seen, captured) = match look(steady.connection(), tables.as_ref()).await {
                Ok(found) => found,
                Err(error) if self.watch.is_some() => {
                    steady.mend(error).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let states: Vec<State> =
                seen.sinks.iter().map(|sink| state(sink, &seen.slots, &outline)).collect();
            let text = if json {
                format!("{}\n", print::document(&seen, &states, &captured))
            } else {
                print::words(&seen, &states, &captured, self.lanes)
            };
            // From the top, and nothing of the last picture below.
            let wanted = if redraw {
                output::stream(&format!("\x1b[H\x1b[2J{text}"))?
            } else {
                output::stream(&text)?
            };
            let well = states.iter().all(|state| state.troubles.is_empty()) && captured.is_well();
            let exit = if well { Exit::Fine } else { Exit::Found };
            match self.watch {
                Some(Span(every)) if wanted => {
                    tokio::time::sleep(every).await;
                }
                _ => return Ok(exit),
            }
        }
    }
}

async fn look(
    connection: &mut PgConnection,
    tables: Option<&Tables>,
) -> log::error::Result<(Seen, Captured)> {
    let seen = gather(connection).await?;
    let captured = captured::look(connection, tables).await?;
    Ok((seen, captured))
}

/// Each look costs the server something.
fn pause(text: &str) -> Result<Span, String> {
    let every: Span = text.parse()?;
    if every.0 < Duration::from_millis(100) {
        return Err("it has to be 100ms at least".to_owned());
    }
    Ok(every)
}
