//! What the queues behind an exchange do with a message that they have confirmed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::config::RabbitMqConfig;
use super::connection::Connection;
use super::management::{Asked, encoded};
use crate::durability::{Durability, Weakness};
use crate::sink::Unavailable;

/// Exchanges can be bound to exchanges; so many of them are looked at.
const MOST_EXCHANGES: usize = 100;

/// Asks the management which queues there are and how they are set up. AMQP itself says nothing of that.
pub(crate) async fn durability(config: &RabbitMqConfig) -> Result<Durability, Unavailable> {
    let Some(asked) = Asked::of(config) else {
        Connection::open(config).await?.close(config).await;
        return Ok(Durability::new([Weakness::RabbitMqUnknown]));
    };
    let mut found: BTreeSet<Weakness> = BTreeSet::new();
    let mut is_kept = false;
    for queue in queues(&asked, &config.exchange).await? {
        // One may have gone since.
        let Some(queue) = asked.get(&format!("/api/queues/{}/{}", asked.vhost, encoded(&queue))).await?
        else {
            continue;
        };
        is_kept = true;
        found.extend(judge(&queue, has_dead_letters(&asked, &queue).await?));
    }
    if !is_kept {
        found.insert(Weakness::RabbitMqNoQueue);
    }
    Ok(Durability::new(found))
}

/// The queues that an exchange leads to, also through other exchanges.
async fn queues(asked: &Asked<'_>, exchange: &str) -> Result<BTreeSet<String>, Unavailable> {
    let mut queues = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![exchange.to_owned()];
    while let Some(exchange) = open.pop() {
        if seen.len() == MOST_EXCHANGES || !seen.insert(exchange.clone()) {
            continue;
        }
        let path = format!("/api/exchanges/{}/{}/bindings/source", asked.vhost, encoded(&exchange));
        let bindings = asked.get(&path).await?.unwrap_or_default();
        for binding in bindings.as_array().into_iter().flatten() {
            let Some(to) = binding["destination"].as_str() else { continue };
            if binding["destination_type"] == "exchange" {
                open.push(to.to_owned());
            } else {
                queues.insert(to.to_owned());
            }
        }
    }
    Ok(queues)
}

/// How a queue is set up in this: by its own argument, or by a policy. Of two numbers the server takes the smaller, and either is one.
fn set<'a>(queue: &'a Value, argument: &str, policy: &str) -> Option<&'a Value> {
    let own = &queue["arguments"][argument];
    let of_policy = &queue["effective_policy_definition"][policy];
    [own, of_policy].into_iter().find(|value| !value.is_null())
}

/// Whether what a queue drops goes somewhere else. The server takes any name for a dead-letter exchange, and drops what is for one that is not
/// there.
async fn has_dead_letters(asked: &Asked<'_>, queue: &Value) -> Result<bool, Unavailable> {
    let text = |argument, policy| set(queue, argument, policy).and_then(Value::as_str);
    let path = match text("x-dead-letter-exchange", "dead-letter-exchange") {
        None => return Ok(false),
        // The one without a name leads to the queue that the routing key names. The keys of events name types, and no queues.
        Some("") => match text("x-dead-letter-routing-key", "dead-letter-routing-key") {
            None => return Ok(false),
            Some(to) => format!("/api/queues/{}/{}", asked.vhost, encoded(to)),
        },
        Some(exchange) => format!("/api/exchanges/{}/{}", asked.vhost, encoded(exchange)),
    };
    Ok(asked.get(&path).await?.is_some())
}

/// By what the management says of a queue, and whether what it drops goes elsewhere.
fn judge(queue: &Value, has_dead_letters: bool) -> Vec<Weakness> {
    let set = |argument, policy| set(queue, argument, policy);
    let has_limit =
        set("x-max-length", "max-length").or(set("x-max-length-bytes", "max-length-bytes")).is_some();
    let overflow = set("x-overflow", "overflow").and_then(Value::as_str);
    let is_stream = queue["type"] == "stream";
    let is_quorum = queue["type"] == "quorum";
    // The second is for classic queues. A quorum queue takes it, knows nothing of it, and drops what is oldest; so does a stream, whatever
    // it is told.
    let rejects = match overflow {
        Some("reject-publish") => !is_stream,
        Some("reject-publish-dlx") => !is_stream && !is_quorum,
        _ => false,
    };
    let members = queue["members"].as_array().map_or(1, Vec::len);
    let found = [
        // How long a stream keeps messages (`x-max-age`) is what it is for, how much of them is not; and it has no dead letters.
        (has_limit && !rejects && (is_stream || !has_dead_letters)).then_some(Weakness::RabbitMqDropsHead),
        (set("x-message-ttl", "message-ttl").is_some() && !has_dead_letters)
            .then_some(Weakness::RabbitMqMessagesExpire),
        set("x-expires", "expires").map(|_| Weakness::RabbitMqQueueGoes),
        (queue["auto_delete"] == true).then_some(Weakness::RabbitMqQueueGoes),
        (queue["exclusive"] == true).then_some(Weakness::RabbitMqExclusive),
        // An exclusive one is never durable, whatever it was declared as.
        (queue["durable"] == false && queue["exclusive"] != true).then_some(Weakness::RabbitMqTransient),
        (is_quorum && members < 2).then_some(Weakness::RabbitMqOneMember),
        (!is_quorum && members < 2).then_some(Weakness::RabbitMqOneNode),
    ];
    found.into_iter().flatten().collect()
}
