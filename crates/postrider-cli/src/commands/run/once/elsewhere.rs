//! Lanes that another relay holds: it may do the work, or may never do it.

use std::time::{Duration, Instant};

use postrider::log::Error;
use postrider_relay::SinkStatus;
use sqlx::PgConnection;

use super::paused;
use crate::failure::Failure;
use crate::output;

/// What is known of the lanes of a sink that are not ours.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Who holds them; nobody, if a relay has died and its lease has not run out.
    holders: Vec<String>,
    lanes: Vec<i16>,
    /// Whether somebody paused the sink: then nobody has to deliver.
    is_paused: bool,
    /// How far they are in all.
    progress: i64,
    /// Since when they are no further.
    since: Instant,
}

impl Elsewhere {
    pub(super) async fn ask(
        &mut self,
        connection: &mut PgConnection,
        sink: &SinkStatus,
        goal: i64,
        lanes: usize,
    ) -> Result<(), Failure> {
        if sink.lanes.len() == lanes {
            self.seen = None;
            return Ok(());
        }
        let (holders, lanes, is_paused, progress): (Vec<String>, Vec<i16>, bool, i64) = sqlx::query_as(
            "select coalesce(array_agg(distinct reader) filter (where reader is not null), '{}'),
                    coalesce(array_agg(lane order by lane), '{}'),
                    exists (select from postrider.sinks s where s.name = $1 and s.paused_at is not null),
                    coalesce(sum(least(position, $3) + coalesce(late_position, 0)), 0)::bigint
             from postrider.cursors where sink = $1 and lane <> all ($2)",
        )
        .bind(&sink.name)
        .bind(&sink.lanes)
        .bind(goal)
        .fetch_one(connection)
        .await
        .map_err(Error::from)?;
        let since = match &self.seen {
            Some(seen) if seen.progress == progress && seen.lanes == lanes => seen.since,
            _ => Instant::now(),
        };
        self.seen = Some(Seen { holders, lanes, is_paused, progress, since });
        Ok(())
    }

    /// Who holds up the sink, if nothing has moved there for so long.
    pub(super) fn reason(&self, sink: &str, patience: Duration) -> Option<String> {
        let seen = self.seen.as_ref().filter(|seen| seen.since.elapsed() > patience)?;
        if seen.is_paused {
            return Some(paused(sink));
        }
        let whose = match &*seen.holders {
            [] => {
                "no living relay holds them, and they could not be taken: see `postrider status`".to_owned()
            }
            names => format!(
                "{} {} them and does not deliver: see `postrider status`, or stop it, and its lanes are taken over",
                output::plain(&names.join(", ")),
                if names.len() == 1 { "holds" } else { "hold" },
            ),
        };
        let lanes: Vec<String> = seen.lanes.iter().map(ToString::to_string).collect();
        Some(format!(
            "sink {sink:?}: what was committed is still waiting in lanes {} after the patience of {patience:?}; {whose}",
            lanes.join(", ")
        ))
    }
}
