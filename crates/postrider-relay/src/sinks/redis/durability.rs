//! What a Redis server does with an entry that it has confirmed.

use super::config::RedisConfig;
use super::connection::Connection;
use crate::durability::{Durability, Weakness};
use crate::sink::Unavailable;

/// Asks the server.
pub(crate) async fn durability(config: &RedisConfig) -> Result<Durability, Unavailable> {
    let mut connection = Connection::open(config, None).await?;
    let names = ["appendonly", "appendfsync", "maxmemory", "maxmemory-policy"];
    let settings = connection.settings(names).await?;
    let cut = config.max_len.map(|_| Weakness::RedisCutsStreams);
    let found = match settings.each_ref().map(Option::as_deref) {
        [Some(appendonly), Some(appendfsync), Some(maxmemory), Some(policy)] => vec![
            Some(Weakness::RedisOneServer),
            kept(appendonly, appendfsync),
            (maxmemory != "0" && policy != "noeviction").then_some(Weakness::RedisEvicts),
        ],
        _ => vec![Some(Weakness::RedisUnknown)],
    };
    Ok(Durability::new(found.into_iter().flatten().chain(cut)))
}

fn kept(appendonly: &str, appendfsync: &str) -> Option<Weakness> {
    match (appendonly, appendfsync) {
        ("yes", "always") => None,
        ("yes", "everysec") => Some(Weakness::RedisEverySecond),
        ("yes", _) => Some(Weakness::RedisNotSynced),
        _ => Some(Weakness::RedisInMemory),
    }
}
