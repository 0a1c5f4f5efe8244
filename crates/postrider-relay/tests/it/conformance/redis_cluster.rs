//! The sink `redis`, against a Redis Cluster of three nodes.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use postrider_relay::durability::Weakness;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::redis::{RedisConfig, RedisSink};
use postrider_relay::{EventId, Message, Outcome, Sink as _};
use postrider_testkit::{Redis, RedisCluster};

use super::redis::ids;
use super::{assert_in_order, carried, delivered, event, kills_of_one_in_three};

const NODES: usize = 3;
const STREAM: &str = "events:order";

async fn stored(cluster: &RedisCluster, stream: &str) -> Result<Vec<uuid::Uuid>> {
    let (_, node) = cluster.keeper(stream).await?;
    ids(&cluster.nodes[node].ask(["XRANGE", stream, "-", "+"]).await?)
}

/// A transaction has one slot, a batch has many: each gets what is its own, and one bad stream concerns its events alone.
#[tokio::test]
async fn a_redis_cluster_takes_a_batch_for_streams_on_all_its_nodes() -> Result<()> {
    let cluster = RedisCluster::start(Redis::durable(), NODES).await?;
    // One of the addresses is nobody's.
    let config = RedisConfig::new(format!("redis://127.0.0.1:1, {}", cluster.nodes[0].url()));
    let mut sink = RedisSink::open(config.clone()).await.unwrap();
    let streams: Vec<String> = (0..10).map(|n| format!("events:{n}")).collect();
    delivered(&mut sink, &[event("text")], "no-stream").await;
    let (_, node) = cluster.keeper("no-stream").await?;
    cluster.nodes[node].ask(["SET", "no-stream", "but a text"]).await?;

    let records: Vec<_> = (0..200).map(|n| event(&format!("key-{}", n % 10))).collect();
    let destination = |at: usize| if at == 105 { "no-stream" } else { streams[at % 10].as_str() };
    let batch: Vec<Message<'_>> = records
        .iter()
        .enumerate()
        .map(|(at, record)| Message {
            record,
            id: EventId::of(record),
            destination: destination(at).to_owned(),
            content_type: "application/json",
            headers: Vec::new(),
            body: b"{}".to_vec(),
        })
        .collect();
    let report = sink.deliver(&batch).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for (at, outcome) in report.outcomes.iter().enumerate() {
        let is_right = match at {
            105 => matches!(outcome, Outcome::Refused(_)),
            _ if at > 105 && at % 10 == 5 => *outcome == Outcome::NotSent,
            _ => *outcome == Outcome::Delivered,
        };
        assert!(is_right, "{at}: {outcome:?}");
    }
    let mut keepers = std::collections::HashSet::new();
    for (at, stream) in streams.iter().enumerate() {
        let sent: Vec<_> = records.iter().skip(at).step_by(10).cloned().collect();
        let kept = if at == 5 { &sent[..10] } else { &sent };
        assert_in_order(&stored(&cluster, stream).await?, kept);
        keepers.insert(cluster.keeper(stream).await?.1);
    }
    assert_eq!(keepers.len(), NODES, "the test has tested nothing");

    // As weak as its weakest node.
    let grade = async || Target::Redis(config.clone()).durability().await.unwrap().unwrap().weaknesses;
    assert_eq!(grade().await, [Weakness::RedisOneServer]);
    cluster.nodes[2].ask(["CONFIG", "SET", "appendfsync", "everysec"]).await?;
    assert_eq!(grade().await, [Weakness::RedisEverySecond, Weakness::RedisOneServer]);
    Ok(())
}

/// The stream moves from node to node while events come.
#[tokio::test]
async fn fault_95_redis_slots_that_move_take_their_streams_along() -> Result<()> {
    let cluster = RedisCluster::start(Redis::new(), NODES).await?;
    let mut sink = RedisSink::open(RedisConfig::new(cluster.nodes[0].url())).await.unwrap();
    let first = [event("a")];
    delivered(&mut sink, &first, STREAM).await;
    let mut sent = first.to_vec();
    let is_over = AtomicBool::new(false);
    let operator = async {
        let (_, begin) = cluster.keeper(STREAM).await?;
        for step in 1..=6 {
            cluster.move_slot(STREAM, (begin + step) % NODES).await?;
        }
        is_over.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    };
    let load = async {
        while !is_over.load(Ordering::Relaxed) {
            let records: Vec<_> = (0..20).map(|_| event("a")).collect();
            carried(&mut sink, &records, STREAM).await;
            sent.extend(records);
        }
    };
    let (done, ()) = tokio::join!(operator, load);
    done?;
    let after = [event("a")];
    carried(&mut sink, &after, STREAM).await;
    sent.extend(after);
    assert_in_order(&stored(&cluster, STREAM).await?, &sent);
    Ok(())
}

/// `kill -9` of the node that keeps the stream, under load, with everything on its disk before it is confirmed.
#[tokio::test]
async fn fault_95_redis_cluster_loses_nothing_when_nodes_are_killed() -> Result<()> {
    let cluster = RedisCluster::start(Redis::durable(), NODES).await?;
    let mut sink = RedisSink::open(RedisConfig::new(cluster.nodes[0].url())).await.unwrap();
    let mut sent = vec![event("a")];
    delivered(&mut sink, &sent, STREAM).await;
    let (_, keeper) = cluster.keeper(STREAM).await?;
    for _ in 0..kills_of_one_in_three() {
        let records: Vec<_> = (0..400).map(|_| event("a")).collect();
        let load = async {
            for some in records.chunks(20) {
                carried(&mut sink, some, STREAM).await;
            }
        };
        let kill = async {
            cluster.nodes[keeper].crash().await?;
            cluster.nodes[keeper].start().await
        };
        let ((), killed) = tokio::join!(load, kill);
        killed?;
        sent.extend(records);
    }
    cluster.settled().await?;
    assert_in_order(&stored(&cluster, STREAM).await?, &sent);
    Ok(())
}
