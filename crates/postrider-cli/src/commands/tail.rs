//! `postrider tail`: the log as it is written, without being a sink.

mod filter;
mod follow;
mod print;

use clap::Args;
use postrider::log::identity;
use postrider::schema;
use time::OffsetDateTime;

use self::filter::Filter;
use self::follow::{Follow, Past};
use self::print::Printer;
use super::rights;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::steady::Steady;
use crate::{moment, output};

/// Show events as they are committed, until interrupted
///
/// Every event is shown once, also those of transactions that commit late. Nothing is stored: other readers and the ring do not notice. When the
/// database goes away it waits until it is back, and goes on where it was. Needs a role that may read the log, such as the relay's. With --json
/// each line is one event.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider tail
  postrider tail --type 'order.*' --tenant acme
  postrider tail --since 1h --key 7 --json
  postrider tail --lines 10 --limit 10          the last ten, and the end once there are ten")]
pub(crate) struct Tail {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    filter: Filter,

    /// Begin with events written at this time or later: 2026-03-01T12:00:00Z, or how long ago, such as 15m
    #[arg(long, value_name = "TIME", value_parser = moment::parse, conflicts_with = "lines")]
    since: Option<OffsetDateTime>,

    /// Begin with the last N events
    #[arg(long, short = 'n', value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    lines: i64,

    /// End after N events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl Tail {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut steady = Steady::open(&self.target).await?;
        schema::check_version(steady.connection()).await?;
        rights::require_log(steady.connection()).await?;
        identity::compare(steady.connection()).await?;
        let mut printer = Printer::new(json, self.limit);
        let past = match self.since {
            Some(since) => Past::Since(since),
            None if self.lines > 0 => Past::Last(self.lines),
            None => Past::Nothing,
        };
        let mut follow = Follow::begin(steady.connection()).await?;
        // What was asked for is selected by the server already.
        if !follow.look_back(&mut steady, &self.filter, &past, |record| printer.print(record)).await? {
            return Ok(Exit::Fine);
        }
        loop {
            let next = tokio::select! {
                next = follow.next(steady.connection()) => next,
                () = output::unread() => return Ok(Exit::Fine),
            };
            let records = match next {
                Ok(records) => records,
                Err(error) => {
                    steady.mend(error).await?;
                    identity::compare(steady.connection()).await?;
                    continue;
                }
            };
            for record in records.iter().filter(|record| self.filter.matches(record)) {
                if !printer.print(record)? {
                    return Ok(Exit::Fine);
                }
            }
        }
    }
}
