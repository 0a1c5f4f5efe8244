//! What the queues behind an exchange do with a message that they have confirmed.

use std::collections::BTreeSet;

use super::config::RabbitMqConfig;
use super::connection::Connection;
use super::management::Asked;
use super::queue::Queue;
use super::routes::{Reached, reached};
use crate::durability::{Durability, Weakness};
use crate::sink::Unavailable;

/// Dead letters of dead letters, and so on, are followed so many times from queue to queue.
const LONGEST_WAY: usize = 8;

/// And so many times in all. What is not followed counts as lost.
const MOST_FOLLOWED: usize = 10_000;

/// A queue that a message may come to.
struct Stop {
    queue: String,
    /// The message's routing key there, if it can be told. The keys of events name types, which are not known here; a queue may give its dead
    /// letters another.
    key: Option<String>,
    passed: Passed,
}

/// Where the message was before. RabbitMQ drops a dead letter that comes to a queue for the second time, unless a reader has rejected it.
#[derive(Clone, Default)]
struct Passed {
    exchanges: BTreeSet<String>,
    queues: BTreeSet<String>,
}

impl Passed {
    /// The queues that were reached beyond this, as the next stops.
    fn then(&self, reached: Reached, key: Option<&str>) -> Vec<Stop> {
        let mut passed = self.clone();
        passed.exchanges.extend(reached.exchanges);
        let new = reached.queues.difference(&self.queues);
        new.map(|queue| Stop { queue: queue.clone(), key: key.map(str::to_owned), passed: passed.clone() })
            .collect()
    }
}

/// Asks the management which queues there are and how they are set up. AMQP itself says nothing of that.
pub(crate) async fn durability(config: &RabbitMqConfig) -> Result<Durability, Unavailable> {
    let Some(asked) = Asked::of(config) else {
        Connection::open(config).await?.close(config).await;
        return Ok(Durability::new([Weakness::RabbitMqUnknown]));
    };
    let start = Passed::default();
    let mut open = start.then(reached(&asked, &config.exchange, None, &start.exchanges).await?, None);
    let mut found: BTreeSet<Weakness> = BTreeSet::new();
    let (mut is_kept, mut followed) = (false, 0);
    while let Some(Stop { queue: name, key, mut passed }) = open.pop() {
        // One may have gone since.
        let Some(told) = asked.queue(&name).await? else { continue };
        is_kept = true;
        let queue = Queue::new(&told);
        found.extend(queue.weaknesses());
        let losses = queue.losses();
        if losses.is_empty() {
            continue;
        }
        passed.queues.insert(name);
        let mut next = Vec::new();
        if let Some((exchange, new_key)) = queue.dead_letters()
            && passed.queues.len() <= LONGEST_WAY
            && followed < MOST_FOLLOWED
        {
            followed += 1;
            let key = new_key.or(key.as_deref());
            next = passed.then(reached(&asked, exchange, key, &passed.exchanges).await?, key);
        }
        // What it drops goes nowhere, or where it was already.
        if next.is_empty() {
            found.extend(losses);
        }
        open.extend(next);
    }
    if !is_kept {
        found.insert(Weakness::RabbitMqNoQueue);
    }
    Ok(Durability::new(found))
}
