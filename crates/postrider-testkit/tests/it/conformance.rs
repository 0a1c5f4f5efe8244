//! The suite tells a sink that keeps the contract from three that do not.

use anyhow::Result;
use postrider_testkit::conformance::model::{Flaw, Model};
use postrider_testkit::conformance::{Test, examine};

#[tokio::test]
async fn the_model_passes() -> Result<()> {
    let verdicts = examine(&Model::new(Flaw::None).await?).await;
    verdicts.assert_passed();
    assert_eq!(verdicts.exempt(), [Test::BadCredentials, Test::BadTls]);
    Ok(())
}

#[tokio::test]
async fn a_sink_that_acks_early_is_found_out() -> Result<()> {
    let failed = examine(&Model::new(Flaw::AcksEarly).await?).await.failed();
    assert!(failed.contains(&Test::ConfirmedByTheServer), "{failed:?}");
    Ok(())
}

#[tokio::test]
async fn a_sink_that_reorders_after_a_reconnect_is_found_out() -> Result<()> {
    let failed = examine(&Model::new(Flaw::ReordersAfterReconnect).await?).await.failed();
    assert!(failed.contains(&Test::OrderAcrossReconnects), "{failed:?}");
    assert!(!failed.contains(&Test::OrderInsideBatches), "{failed:?}");
    Ok(())
}

#[tokio::test]
async fn a_sink_that_drops_what_is_too_large_is_found_out() -> Result<()> {
    let failed = examine(&Model::new(Flaw::DropsOversize).await?).await.failed();
    assert_eq!(failed, [Test::Oversize]);
    Ok(())
}
