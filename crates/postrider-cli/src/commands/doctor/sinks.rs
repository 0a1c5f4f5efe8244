//! The sinks as the log knows them.

use postrider::log::error::Result as LogResult;
use sqlx::PgConnection;

use super::check::{Report, few};
use crate::commands::status::{self, Seen, Sink};
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
    let lanes = lanes(connection).await;
    let Some(lanes) = report.seen("cursors", lanes)? else {
        return Ok(());
    };
    if seen.sinks.is_empty() {
        report.ok("sinks", "none yet: the first `postrider run` creates them");
        return Ok(());
    }
    cursors(&seen.sinks, lanes, report);
    carried(&seen.sinks, configured, report);
    trouble(&seen, report);
    Ok(())
}

fn cursors(sinks: &[Sink], lanes: usize, report: &mut Report) {
    let incomplete = names(sinks, |sink| sink.lanes.len() != lanes);
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
    let is_orphaned =
        |sink: &Sink| configured.is_some_and(|configured| !configured.contains(&sink.delivery.sink));
    let alone = names(sinks, |sink| {
        sink.delivery.readers.is_empty() && sink.delivery.paused_at.is_none() && !is_orphaned(sink)
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
    let paused = names(sinks, |sink| sink.delivery.paused_at.is_some());
    if !paused.is_empty() {
        report.warn(
            "paused sinks",
            format!("{}: their events stay in the log, which grows", few(&paused)),
            "`postrider sinks resume NAME`",
        );
    }
}

fn trouble(seen: &Seen, report: &mut Report) {
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

async fn lanes(connection: &mut PgConnection) -> LogResult<usize> {
    let lanes: i32 = sqlx::query_scalar("select postrider.lanes()").fetch_one(connection).await?;
    Ok(usize::try_from(lanes).unwrap_or_default())
}
