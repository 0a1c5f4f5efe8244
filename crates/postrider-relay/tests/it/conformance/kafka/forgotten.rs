//! A broker that has forgotten what it confirmed.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use postrider_relay::sinks::kafka::KafkaSink;
use postrider_testkit::{Broker, Kafka};

use super::super::{delivered, event};
use super::{config, firsts, ids, make, stored};

fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    // With owners.
    ensure!(
        Command::new("cp").arg("-a").args([from, to]).status()?.success(),
        "cannot copy {}",
        from.display()
    );
    Ok(())
}

/// Its disk is an older one: what the producer sends next is not what the partition expects of it, which ends that producer for good.
/// Another sends the same, in the same delivery.
#[tokio::test]
async fn fault_78_kafka_goes_on_with_a_new_producer_when_a_partition_went_back() -> Result<()> {
    let server = Broker::private(Kafka::new()).await?;
    let brokers = server.bootstrap();
    let (data, older) = (server.place().dir.join("data"), server.place().dir.join("older"));
    make(&brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let kept = [event("a"), event("b"), event("a")];
    delivered(&mut sink, &kept, "order").await;
    server.stop().await?;
    copy(&data, &older)?;
    server.start().await?;
    let forgotten = [event("a"), event("b"), event("a"), event("b")];
    delivered(&mut sink, &forgotten, "order").await;
    server.crash().await?;
    copy(&older, &data)?;
    server.start().await?;
    let next: Vec<_> = (0..20).map(|at| event(["a", "b"][at % 2])).collect();
    delivered(&mut sink, &next, "order").await;
    let there = stored(&brokers, "order").await?;
    for key in ["a", "b"] {
        assert_eq!(firsts(&there, key), ids(kept.iter().chain(&next), key), "{key}");
    }
    Ok(())
}
