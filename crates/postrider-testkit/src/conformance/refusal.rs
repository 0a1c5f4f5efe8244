//! One event that the server will not have.

use anyhow::{Result, ensure};
use postrider_relay::sink::{Refusal, RefusalKind};

use super::carrier::Fate;
use super::stage::{PATIENT, Stage};

pub(super) async fn oversize(stage: &mut Stage<'_>) -> Result<()> {
    let destination = stage.subject.destination();
    let size = stage.subject.oversize();
    one_of_many(stage, &destination, size, RefusalKind::TooLarge).await
}

pub(super) async fn unroutable(stage: &mut Stage<'_>) -> Result<()> {
    let destination = stage.subject.unroutable();
    one_of_many(stage, &destination, 200, RefusalKind::Unroutable).await
}

/// The third event is the bad one. Twice: what was refused must not have broken anything.
async fn one_of_many(stage: &mut Stage<'_>, destination: &str, size: usize, kind: RefusalKind) -> Result<()> {
    let good = stage.subject.destination();
    let mut carrier = stage.carrier(PATIENT);
    for round in ["first", "second"] {
        let [bad, other] = [format!("bad-{round}"), format!("other-{round}")];
        let events = vec![
            stage.event(Some(&bad), &good, 200),
            stage.event(Some(&other), &good, 200),
            stage.event(Some(&bad), destination, size),
            stage.event(Some(&bad), &good, 200),
            stage.event(Some(&other), &good, 200),
            stage.event(None, &good, 200),
        ];
        let fates = carrier.carry(&events, &stage.ledger).await?;
        let refused = matches!(&fates[2], Fate::Refused(Refusal { kind: said, reason }) if *said == kind && !reason.is_empty());
        ensure!(refused, "it was to be refused as {kind:?}, with a reason, and was {:?}", fates[2]);
        ensure!(fates[3] == Fate::Behind, "an event behind the refused one was {:?}", fates[3]);
        for at in [0, 1, 4, 5] {
            ensure!(fates[at] == Fate::Delivered, "an ordinary event was {:?}", fates[at]);
        }
    }
    stage.check().await?;
    let _ = carrier.close().await?;
    Ok(())
}
