//! What a sink keeps, how it ends, and how it speaks of trouble.

use anyhow::{Context as _, Result, ensure};
use postrider_relay::sink::UnavailableKind;

use super::carrier::{Carrier, chain};
use super::confirmation::{all, silent};
use super::stage::{IMPATIENT, LONGEST, PATIENT, Stage};
use super::{Control, Door, WRONG_PASSWORD};
use crate::proxy::Direction;

const KEYS: [&str; 3] = ["a", "b", "c"];
const BATCHES: usize = 6;
/// Events of a quarter of a megabyte, which every server takes.
const EVENTS: usize = 32;
const SIZE: usize = 256 << 10;

/// Counted in bytes on the wire, and not in this process's memory, which other tests use too: a sink that has kept batches sends them
/// when it can.
pub(super) async fn bounded_memory(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(IMPATIENT);
    let first = stage.events(&KEYS, 10, 200);
    carrier.carry_all(&first, &stage.ledger).await?;
    stage.proxy()?.half_open();
    for _ in 0..BATCHES {
        let events = stage.events(&KEYS, EVENTS, SIZE);
        let report = carrier.deliver(&all(&events), &stage.ledger).await?;
        silent(&report).context("nothing reached the server")?;
    }
    let before = stage.proxy()?.carried(Direction::ToServer);
    stage.proxy()?.heal();
    let last = stage.events(&KEYS, 10, 200);
    carrier.carry_all(&last, &stage.ledger).await?;
    let _ = carrier.close().await?;
    let sent = stage.proxy()?.carried(Direction::ToServer) - before;
    // One batch may have been in the buffers of sockets, ours and the proxy's.
    let most = 2 * EVENTS * SIZE;
    ensure!(sent < most as u64, "{sent} bytes of old batches were kept, and sent in the end");
    Ok(())
}

pub(super) async fn clean_close(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(PATIENT);
    let events = stage.events(&KEYS, 50, 200);
    carrier.carry_all(&events, &stage.ledger).await?;
    carrier.close().await?.map_err(|why| anyhow::anyhow!("closing: {}", chain(&why)))?;
    let Ok(proxy) = stage.proxy() else {
        return stage.check().await.map(drop);
    };
    tokio::time::timeout(LONGEST, proxy.wait_for_connections(0))
        .await
        .context("a connection is still open after closing")?;
    let accepted = proxy.accepted();
    stage.check().await?;
    ensure!(stage.proxy()?.accepted() == accepted, "it has connected again after closing");

    let mut carrier = stage.carrier(IMPATIENT);
    let events = stage.events(&KEYS, 50, 200);
    carrier.carry_all(&events, &stage.ledger).await?;
    stage.server(Control::Freeze).await?;
    let closed = carrier.close().await;
    stage.server(Control::Thaw).await?;
    let _ = closed.context("the server was frozen")?;
    stage.check().await.map(drop)
}

pub(super) async fn bad_credentials(stage: &mut Stage<'_>) -> Result<()> {
    let (kind, said) = trouble(stage, Door::WrongPassword).await?;
    ensure!(kind == UnavailableKind::Forbidden, "a wrong password was called {kind:?}: {said}");
    ensure!(!said.contains(WRONG_PASSWORD), "the password is told: {said}");
    Ok(())
}

pub(super) async fn bad_tls(stage: &mut Stage<'_>) -> Result<()> {
    stage.point_at(Door::Tls)?;
    let mut carrier = Carrier::new(stage.subject, stage.way(PATIENT, Door::Tls));
    let events = stage.events(&[], 1, 200);
    carrier.carry_all(&events, &stage.ledger).await.context("with the right authority")?;
    let _ = carrier.close().await?;
    stage.point_at(Door::WrongAuthority)?;
    let (kind, said) = trouble(stage, Door::WrongAuthority).await?;
    ensure!(said.to_lowercase().contains("certificate"), "an unknown authority was called {kind:?}: {said}");
    Ok(())
}

async fn trouble(stage: &mut Stage<'_>, door: Door) -> Result<(UnavailableKind, String)> {
    let mut carrier = Carrier::new(stage.subject, stage.way(PATIENT, door));
    let destination = stage.subject.destination();
    let event = stage.event(None, &destination, 200);
    let why = carrier.trouble(&event).await?;
    Ok((why.kind, chain(&why)))
}
