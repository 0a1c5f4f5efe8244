//! The sink `nats`, against three servers that keep a stream together.

use std::time::{Duration, Instant};

use anyhow::Result;
use async_nats::jetstream;
use futures_util::future::try_join_all;
use postrider_relay::Sink as _;
use postrider_relay::sinks::nats::{NatsConfig, NatsSink};
use postrider_testkit::{Broker, Nats};

use super::nats::stored;
use super::{assert_in_order, carried, event, kills_of_one_in_three};

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
        assert!(begun.elapsed() < Duration::from_mins(1), "the stream has no leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// `kill -9` of the stream's leader under load: the two others elect another, and have everything that was confirmed.
#[tokio::test]
async fn fault_90_nats_loses_nothing_when_the_leader_of_three_is_killed() -> Result<()> {
    let servers = try_join_all(Nats::cluster(3)?.into_iter().map(Broker::private)).await?;
    let url = servers.iter().map(Broker::<Nats>::url).collect::<Vec<_>>().join(",");
    let config = NatsConfig { create: true, replicas: 3, ..NatsConfig::new(url.clone()) };
    let mut sink = NatsSink::open(config).await.unwrap();
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
    assert_in_order(&stored(&servers[0].url()).await?, &sent);
    Ok(())
}
