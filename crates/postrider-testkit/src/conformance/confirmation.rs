//! What counts as delivered.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_relay::sink::{Outcome, Report, UnavailableKind};

use super::Control;
use super::event::Event;
use super::stage::{IMPATIENT, LONGEST, PATIENT, Stage};
use crate::proxy::Direction;

const KEYS: [&str; 3] = ["a", "b", "c"];

pub(super) async fn by_the_server(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(IMPATIENT);
    let first = stage.events(&KEYS, 20, 200);
    carrier.carry_all(&first, &stage.ledger).await?;
    stage.proxy()?.half_open();
    let events = stage.events(&KEYS, 20, 200);
    for _ in 0..2 {
        let report = carrier.deliver(&all(&events), &stage.ledger).await?;
        silent(&report).context("nothing reached the server")?;
    }
    stage.proxy()?.heal();
    carrier.carry_all(&events, &stage.ledger).await?;
    stage.check().await?;
    let _ = carrier.close().await?;
    Ok(())
}

pub(super) async fn deadline_of_its_own(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(IMPATIENT);
    let first = stage.events(&KEYS, 20, 200);
    carrier.carry_all(&first, &stage.ledger).await?;
    let events = stage.events(&KEYS, 20, 200);
    stage.server(Control::Freeze).await?;
    let begun = Instant::now();
    let answered = carrier.deliver(&all(&events), &stage.ledger).await;
    let took = begun.elapsed();
    stage.server(Control::Thaw).await?;
    let report = answered?;
    silent(&report).context("the server was frozen")?;
    ensure!(took < LONGEST / 4, "it took {took:?} to notice");
    let kind = report.unavailable.as_ref().map(|why| why.kind);
    ensure!(
        matches!(kind, Some(UnavailableKind::Timeout | UnavailableKind::Connection)),
        "a server that says nothing is no {kind:?}"
    );
    carrier.carry_all(&events, &stage.ledger).await?;
    // What the server finds in its sockets only now must not come behind what is newer.
    let newer = stage.events(&KEYS, 20, 200);
    carrier.carry_all(&newer, &stage.ledger).await?;
    stage.check().await?;
    let _ = carrier.close().await?;
    Ok(())
}

pub(super) async fn lost(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(IMPATIENT);
    for _ in 0..2 {
        let first = stage.events(&KEYS, 20, 200);
        carrier.carry_all(&first, &stage.ledger).await?;
        let events = stage.events(&KEYS, 20, 200);
        stage.proxy()?.drop_direction(Direction::ToClient);
        let report = carrier.deliver(&all(&events), &stage.ledger).await?;
        silent(&report).context("no confirmation came back")?;
        stage.proxy()?.heal();
        carrier.carry_all(&events, &stage.ledger).await?;
    }
    stage.check().await?;
    let _ = carrier.close().await?;
    Ok(())
}

pub(super) async fn killed_server(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(PATIENT);
    let first = stage.events(&KEYS, 20, 200);
    carrier.carry_all(&first, &stage.ledger).await?;
    let mut hits = 0;
    for round in 0..stage.subject.kills() {
        let events = stage.events(&KEYS, 2000, 200);
        let over = Cell::new(false);
        let kill = async {
            // At another place in the stream of events each time.
            let before = stage.proxy()?.carried(Direction::ToServer);
            let more = 2_000 + 40_000 * (round as u64 % 7);
            while stage.proxy()?.carried(Direction::ToServer) < before + more && !over.get() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let is_hit = !over.get();
            stage.server(Control::Kill).await?;
            stage.server(Control::Start).await?;
            anyhow::Ok(is_hit)
        };
        let carry = async {
            let arrived = carrier.carry_all(&events, &stage.ledger).await;
            over.set(true);
            arrived
        };
        let (arrived, is_hit) = tokio::join!(carry, kill);
        hits += usize::from(is_hit?);
        arrived.with_context(|| format!("kill {}", round + 1))?;
    }
    let kills = stage.subject.kills();
    ensure!(2 * hits >= kills, "only {hits} of {kills} kills met events on their way");
    stage.check().await?;
    let _ = carrier.close().await?;
    Ok(())
}

pub(super) fn all(events: &[Event]) -> Vec<&Event> {
    events.iter().collect()
}

/// Nothing was confirmed, and so nothing may count as delivered.
pub(super) fn silent(report: &Report) -> Result<()> {
    let delivered = report.outcomes.iter().filter(|outcome| **outcome == Outcome::Delivered).count();
    ensure!(delivered == 0, "{delivered} of {} events were called delivered", report.outcomes.len());
    ensure!(report.unavailable.is_some(), "the sink did not say that it is unavailable");
    Ok(())
}
