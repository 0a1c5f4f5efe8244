//! What a Redis server does with an entry that it has confirmed.

use super::config::RedisConfig;
use super::connection::Connection;
use super::nodes::{Names, Nodes};
use crate::durability::{Durability, Weakness};
use crate::sink::Unavailable;

/// Asks the server, or each node of its cluster that keeps streams.
pub(crate) async fn durability(config: &RedisConfig) -> Result<Durability, Unavailable> {
    let mut found: Vec<Weakness> = config.max_len.map(|_| Weakness::RedisCutsStreams).into_iter().collect();
    for mut connection in Nodes::open(config, &Names::new()).await?.all(config).await? {
        for weakness in of_one(&mut connection).await? {
            if !found.contains(&weakness) {
                found.push(weakness);
            }
        }
    }
    Ok(Durability::new(found))
}

async fn of_one(connection: &mut Connection) -> Result<Vec<Weakness>, Unavailable> {
    let names = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy"];
    let settings = connection.settings(names).await?;
    Ok(match settings.each_ref().map(Option::as_deref) {
        [Some(appendonly), Some(appendfsync), Some(pauses), Some(maxmemory), Some(policy)] => {
            let evicts = (maxmemory != "0" && policy != "noeviction").then_some(Weakness::RedisEvicts);
            let kept = kept(appendonly, appendfsync, pauses);
            [Some(Weakness::RedisOneServer), kept, evicts].into_iter().flatten().collect()
        }
        _ => vec![Weakness::RedisUnknown],
    })
}

fn kept(appendonly: &str, appendfsync: &str, pauses: &str) -> Option<Weakness> {
    match (appendonly, appendfsync) {
        ("yes", "always") => (pauses == "yes").then_some(Weakness::RedisSyncPauses),
        ("yes", "everysec") => Some(Weakness::RedisEverySecond),
        ("yes", _) => Some(Weakness::RedisNotSynced),
        _ => Some(Weakness::RedisInMemory),
    }
}
