//! A Redis Cluster: several nodes that share the slots among them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Broker, Redis};

const SLOTS: usize = 16_384;
const PATIENCE: Duration = Duration::from_mins(1);

/// Nodes that know each other, each with its share of the slots; none has a replica.
pub struct RedisCluster {
    /// In the order of their slots.
    pub nodes: Vec<Broker<Redis>>,
}

impl RedisCluster {
    /// Starts so many, and waits until they agree.
    pub async fn start(service: Redis, count: usize) -> Result<Self> {
        let mut nodes = Vec::with_capacity(count);
        for at in 0..count {
            let node = Broker::private(service.clone().clustered()).await?;
            let (first, last) = (at * SLOTS / count, (at + 1) * SLOTS / count - 1);
            node.ask(["CLUSTER".into(), "ADDSLOTSRANGE".into(), first.to_string(), last.to_string()]).await?;
            nodes.push(node);
        }
        let cluster = Self { nodes };
        for other in cluster.nodes.iter().skip(1) {
            let [port, bus] = [other.port(), other.bus_port()].map(|port| port.to_string());
            cluster.nodes[0].ask(["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        cluster.settled().await?;
        Ok(cluster)
    }

    /// Waits until every node serves, and knows every other.
    pub async fn settled(&self) -> Result<()> {
        let begun = Instant::now();
        let nodes = format!("cluster_known_nodes:{}", self.nodes.len());
        loop {
            let mut agree = 0;
            for node in &self.nodes {
                let info = node.say(["CLUSTER", "INFO"]).await?;
                agree += usize::from(info.contains("cluster_state:ok") && info.contains(&nodes));
            }
            if agree == self.nodes.len() {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "the nodes do not agree:\n{}", self.nodes[0].log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The slot of a key, and the place of the node that has it, by that node's own word.
    pub async fn keeper(&self, key: &str) -> Result<(String, usize)> {
        let slot = self.nodes[0].ask(["CLUSTER", "KEYSLOT", key]).await?;
        let slot = slot.as_u64().context("CLUSTER KEYSLOT is a number")?.to_string();
        for (at, node) in self.nodes.iter().enumerate() {
            if node.ask(["CLUSTER", "COUNTKEYSINSLOT", &slot]).await? != 0 {
                return Ok((slot, at));
            }
        }
        anyhow::bail!("no node has {key:?}")
    }

    /// Gives a slot, and the key in it, to another node, as an operator does: in steps, between which clients come.
    pub async fn move_slot(&self, key: &str, to: usize) -> Result<()> {
        let (slot, from) = self.keeper(key).await?;
        let [source, target] = [&self.nodes[from], &self.nodes[to]];
        let source_id = id(source).await?;
        let target_id = id(target).await?;
        target.ask(["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await?;
        source.ask(["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await?;
        source.ask(["MIGRATE", "127.0.0.1", &target.port().to_string(), key, "0", "20000"]).await?;
        for node in [target, source] {
            node.ask(["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await?;
        }
        Ok(())
    }
}

async fn id(node: &Broker<Redis>) -> Result<String> {
    let id = node.ask(["CLUSTER", "MYID"]).await?;
    Ok(id.as_str().context("CLUSTER MYID is a text")?.to_owned())
}
