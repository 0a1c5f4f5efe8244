//! Order per key.

use anyhow::{Result, ensure};
use rand::RngExt as _;

use super::stage::{PATIENT, Stage};
use crate::proxy::Direction;
use crate::seed::Seed;

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

pub(super) async fn inside_batches(stage: &mut Stage<'_>) -> Result<()> {
    let mut carrier = stage.carrier(PATIENT);
    for count in [1, 2, 120, 500, 700] {
        let events = stage.events(&KEYS, count, 200);
        carrier.carry_all(&events, &stage.ledger).await?;
    }
    let report = stage.check().await?;
    ensure!(carrier.was_interrupted || report.is_exact(), "nothing went wrong, and yet: {report}");
    close(&mut carrier).await
}

pub(super) async fn across_reconnects(stage: &mut Stage<'_>) -> Result<()> {
    let mut random = Seed::from_env_or_random("order across reconnects").rng();
    let mut carrier = stage.carrier(PATIENT);
    for round in 0..16 {
        let events = stage.events(&KEYS, 60, 200);
        // On the way there, inside what is sent; on the way back, inside what is confirmed.
        let (direction, most) = match round % 2 {
            0 => (Direction::ToServer, 12_000),
            _ => (Direction::ToClient, 1_200),
        };
        stage.proxy()?.truncate_after(direction, random.random_range(1..most));
        carrier.carry_all(&events, &stage.ledger).await?;
        stage.proxy()?.heal();
    }
    let connections = stage.proxy()?.accepted();
    ensure!(connections > 1, "no connection was broken: the test has tested nothing");
    stage.check().await?;
    close(&mut carrier).await
}

/// A sink with nothing in flight closes well.
async fn close(carrier: &mut super::carrier::Carrier<'_>) -> Result<()> {
    carrier.close().await?.map_err(|why| anyhow::anyhow!("closing: {}", super::carrier::chain(&why)))
}
