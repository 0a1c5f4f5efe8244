//! The sinks as the log knows them.

use std::collections::HashMap;

use postrider::log::error::Result as LogResult;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::check::{Report, few};
use crate::commands::status::{self, Delivery, Seen, Sink};
use crate::failure::Failure;
use crate::{moment, output};

pub(super) async fn examine(
    connection: &mut PgConnection,
    configured: Option<&[String]>,
    report: &mut Report,
) -> Result<(), Failure> {
    let gathered = status::gather(connection).await;
    let Some(seen) = report.seen("sinks", gathered)? else {
        return Ok(());
    };
    let found = cursors_of(connection).await;
    let Some((lanes, found)) = report.seen("cursors", found)? else {
        return Ok(());
    };
    if seen.sinks.is_empty() {
        report.ok("sinks", "none yet: the first `postrider run` creates them");
        return Ok(());
    }
    cursors(&seen.sinks, lanes, &found, report);
    carried(&seen.sinks, configured, report);
    said(&seen.sinks, report);
    trouble(&seen, report);
    taken_back(&seen.sinks, report);
    Ok(())
}

fn cursors(sinks: &[Sink], lanes: i32, found: &HashMap<String, i64>, report: &mut Report) {
    let incomplete = names(sinks, |sink| found.get(&sink.delivery.sink) != Some(&lanes.into()));
    if incomplete.is_empty() {
        report.ok("cursors", format!("every sink has a cursor for each of {lanes} lanes"));
    } else {
        report.bad(
            "cursors",
            format!("progress was removed by hand, and lanes have no cursor: {}", few(&incomplete)),
            "forget the sink with `postrider sinks forget NAME` and let a relay create it again",
        );
    }
}

fn carried(sinks: &[Sink], configured: Option<&[String]>, report: &mut Report) {
    let is_orphaned = |sink: &Sink| sink.is_orphaned(configured);
    let alone = names(sinks, |sink| {
        sink.delivery.readers.is_empty()
            && sink.delivery.paused_at.is_none()
            && !sink.delivery.is_consumer
            && !is_orphaned(sink)
    });
    if alone.is_empty() {
        report.ok("sinks", format!("{} known, each carried by a relay, paused or orphaned", sinks.len()));
    } else {
        report.bad(
            "sinks",
            format!("no relay carries the events of {}", few(&alone)),
            "start one with `postrider run`, or give a sink up with `postrider sinks forget NAME`",
        );
    }
    let orphaned = names(sinks, is_orphaned);
    if !orphaned.is_empty() {
        report.warn(
            "orphaned sinks",
            format!(
                "not in the configuration: {}; they keep their events from being removed",
                few(&orphaned)
            ),
            "put them back, or give them up with `postrider sinks forget NAME`",
        );
    }
    let foreign: Vec<String> = sinks
        .iter()
        .filter(|sink| sink.is_foreign(configured) && !is_orphaned(sink))
        .map(|sink| format!("{} by {}", sink.delivery.sink, sink.carriers().join(", ")))
        .collect();
    if !foreign.is_empty() {
        report.ok("other sinks", format!("not in this configuration, and carried: {}", few(&foreign)));
    }
    let unknown: Vec<String> = configured
        .unwrap_or_default()
        .iter()
        .filter(|name| !sinks.iter().any(|sink| sink.delivery.sink == **name))
        .cloned()
        .collect();
    if !unknown.is_empty() {
        report.warn(
            "new sinks",
            format!("in the configuration, and no relay has ever run for them: {}", few(&unknown)),
            "start or reload a relay with this configuration",
        );
    }
    let paused: Vec<String> = sinks
        .iter()
        .filter_map(|sink| {
            Some(format!("{} since {}", sink.delivery.sink, moment::short(sink.delivery.paused_at?)))
        })
        .collect();
    if !paused.is_empty() {
        report.warn(
            "paused sinks",
            format!("{}: their events stay in the log, which grows", few(&paused)),
            "`postrider sinks resume NAME`",
        );
    }
}

/// What the relays that are alive say, and who they are.
fn said(sinks: &[Sink], report: &mut Report) {
    let mut troubles = Vec::new();
    let mut owners = Vec::new();
    for sink in sinks {
        let name = &sink.delivery.sink;
        for relay in &sink.relays {
            let (by, state, since) = (&relay.relay, &relay.state, moment::short(relay.since));
            match &relay.trouble {
                Some(trouble) => troubles.push(format!("{name}: {state} at {by} since {since}: {trouble}")),
                None => owners.push(format!("{name} at {by} ({} lanes)", relay.lanes.len())),
            }
        }
    }
    if troubles.is_empty() {
        let detail = if owners.is_empty() { "none is alive".to_owned() } else { few(&owners) };
        report.ok("relays", detail);
    } else {
        report.bad(
            "relays",
            few(&troubles),
            "do what it says there; delivery goes on by itself when the cause is gone",
        );
    }
    let free: Vec<String> = sinks
        .iter()
        .filter(|sink| !sink.delivery.readers.is_empty() && sink.delivery.free_lanes > 0)
        .map(|sink| format!("{} of {}", sink.delivery.free_lanes, sink.delivery.sink))
        .collect();
    if !free.is_empty() {
        report.warn(
            "lanes",
            format!("nobody holds {}", few(&free)),
            "a relay takes them over within log.lease; if they stay free, look at its log",
        );
    }
}

/// It cannot be mended, only told to others: a week is time enough, and then it is history.
const MEMORABLE: time::Duration = time::Duration::WEEK;

fn taken_back(sinks: &[Sink], report: &mut Report) {
    let oldest = OffsetDateTime::now_utc() - MEMORABLE;
    let found: Vec<String> = sinks
        .iter()
        .filter_map(|sink| {
            let at = moment::short(sink.delivery.taken_back_at.filter(|at| *at > oldest)?);
            Some(format!(
                "{} of {}, last seen {at}",
                output::events(sink.delivery.taken_back),
                sink.delivery.sink
            ))
        })
        .collect();
    if !found.is_empty() {
        report.warn(
            "taken back",
            format!("delivered, and then taken back by a failover: {}", few(&found)),
            "tell who received them (the relay's log names the ids); with log.standbys an event leaves only when a standby has it. This is \
             shown for a week",
        );
    }
}

fn trouble(seen: &Seen, report: &mut Report) {
    let parked: Vec<String> = seen
        .sinks
        .iter()
        .filter(|sink| sink.delivery.waiting + sink.delivery.behind > 0)
        .map(|sink| {
            let Delivery { sink, waiting, behind, .. } = &sink.delivery;
            format!("{sink}: {waiting} tried again, {behind} behind them")
        })
        .collect();
    if !parked.is_empty() {
        report.warn(
            "parked events",
            few(&parked),
            "`postrider dead list --parked` says why; they pass when the cause is mended",
        );
    }
    let dead: Vec<String> = seen
        .sinks
        .iter()
        .filter(|sink| sink.delivery.dead > 0)
        .map(|sink| format!("{} at {}", output::events(sink.delivery.dead), sink.delivery.sink))
        .collect();
    if dead.is_empty() {
        report.ok("dead events", "none");
    } else {
        report.warn(
            "dead events",
            few(&dead),
            "`postrider dead list` says why; then `postrider dead retry` or `discard`",
        );
    }
    let waiting: Vec<String> = seen
        .sinks
        .iter()
        .filter_map(|sink| {
            let oldest =
                sink.oldest.filter(|oldest| *oldest >= status::STUCK && sink.delivery.paused_at.is_none())?;
            Some(format!("{}: for {}", sink.delivery.sink, moment::span(oldest)))
        })
        .collect();
    if waiting.is_empty() {
        report.ok("waiting events", "none has waited for more than five minutes");
    } else {
        report.warn(
            "waiting events",
            few(&waiting),
            "`postrider status` shows who carries them; postrider.stuck lists them",
        );
    }
}

fn names(sinks: &[Sink], wanted: impl Fn(&Sink) -> bool) -> Vec<String> {
    sinks.iter().filter(|sink| wanted(sink)).map(|sink| sink.delivery.sink.clone()).collect()
}

/// How many lanes there are, and of how many each sink has a cursor.
async fn cursors_of(connection: &mut PgConnection) -> LogResult<(i32, HashMap<String, i64>)> {
    let lanes = sqlx::query_scalar("select postrider.lanes()").fetch_one(&mut *connection).await?;
    let found: Vec<(String, i64)> =
        sqlx::query_as("select c.sink, count(*) from postrider.cursors c group by c.sink")
            .fetch_all(connection)
            .await?;
    Ok((lanes, found.into_iter().collect()))
}
