//! The sink `nats`, against three servers that keep a stream together.

use std::time::{Duration, Instant};

use anyhow::Result;
use async_nats::jetstream;
use futures_util::future::try_join_all;
use postrider::log::Record;
use postrider_relay::Sink as _;
use postrider_relay::sinks::nats::{NatsConfig, NatsSink};
use postrider_testkit::{Broker, Nats};
use uuid::Uuid;

use super::nats::stored;
use super::{assert_in_order, carried, event, kills_of_one_in_three};
use crate::support::PATIENCE;

/// Three that have just begun need not know of each other: a stream for all of them may find no place yet.
async fn opened(config: &NatsConfig) -> NatsSink {
    let begun = Instant::now();
    loop {
        match NatsSink::open(config.clone(), "bus").await {
            Ok(sink) => return sink,
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{why:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is there in the end, by whichever answers: one that was just started, or elected, may not, or not know all of it yet.
async fn in_the_end(servers: &[Broker<Nats>], sent: &[Record]) -> Vec<Uuid> {
    let begun = Instant::now();
    for server in servers.iter().cycle() {
        let read = tokio::time::timeout(Duration::from_secs(30), stored(&server.url())).await;
        let is_late = begun.elapsed() > PATIENCE;
        match read {
            Ok(Ok(ids)) if is_late || sent.iter().all(|record| ids.contains(&record.id)) => return ids,
            other => assert!(!is_late, "{other:?}\n{}", server.log_tail()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Vec::new()
}

/// Who leads the stream, once they have agreed.
async fn leader(context: &jetstream::Context) -> String {
    let begun = Instant::now();
    loop {
        if let Ok(stream) = context.get_stream("events").await
            && let Some(leader) =
                stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone())
        {
            return leader;
        }
        assert!(begun.elapsed() < PATIENCE, "the stream has no leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// `kill -9` of the stream's leader under load: the two others elect another, and have everything that was confirmed.
#[tokio::test]
async fn fault_90_nats_loses_nothing_when_the_leader_of_three_is_killed() -> Result<()> {
    let servers = try_join_all(Nats::cluster(3)?.into_iter().map(Broker::private)).await?;
    let url = servers.iter().map(Broker::<Nats>::url).collect::<Vec<_>>().join(",");
    let config = NatsConfig { create: true, replicas: 3, ..NatsConfig::new(url.clone()) };
    let mut sink = opened(&config).await;
    let addresses: Vec<_> =
        url.split(',').map(str::parse).collect::<Result<Vec<async_nats::ServerAddr>, _>>()?;
    let context = jetstream::new(async_nats::connect(addresses).await?);
    let mut sent = vec![event("a")];
    carried(&mut sink, &sent, "events.order.paid").await;
    for _ in 0..kills_of_one_in_three() {
        let leader = leader(&context).await;
        let at: usize = leader.trim_start_matches('n').parse()?;
        let records: Vec<_> = (0..200).map(|_| event("a")).collect();
        let load = async {
            for some in records.chunks(10) {
                carried(&mut sink, some, "events.order.paid").await;
            }
        };
        let kill = async {
            servers[at].crash().await?;
            servers[at].start().await
        };
        let ((), killed) = tokio::join!(load, kill);
        killed?;
        sent.extend(records);
    }
    Box::new(sink).close().await.unwrap();
    assert_in_order(&in_the_end(&servers, &sent).await, &sent);
    Ok(())
}
