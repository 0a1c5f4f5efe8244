//! How a queue is set up, by what the management says of it.

use serde_json::Value;

use crate::durability::Weakness;

/// One of them.
pub(super) struct Queue<'a> {
    told: &'a Value,
    is_stream: bool,
    is_quorum: bool,
}

impl<'a> Queue<'a> {
    pub(super) fn new(told: &'a Value) -> Self {
        Self { told, is_stream: told["type"] == "stream", is_quorum: told["type"] == "quorum" }
    }

    /// By its own argument, and by its policies, which the management has put together.
    fn all(&self, argument: &str, policy: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        let own = &self.told["arguments"][argument];
        let of_policy = &self.told["effective_policy_definition"][policy];
        [own, of_policy].into_iter().filter(|value| !value.is_null())
    }

    /// Of two numbers the server takes the smaller, and either is one; of two names of exchanges the argument.
    fn set(&self, argument: &str, policy: &str) -> Option<&'a Value> {
        self.all(argument, policy).next()
    }

    /// Where what it drops goes to, and with which routing key, if not with the one that it has. A stream has no dead letters.
    pub(super) fn dead_letters(&self) -> Option<(&'a str, Option<&'a str>)> {
        if self.is_stream {
            return None;
        }
        let exchange = self.set("x-dead-letter-exchange", "dead-letter-exchange")?.as_str()?;
        let key = self.set("x-dead-letter-routing-key", "dead-letter-routing-key").and_then(Value::as_str);
        Some((exchange, key))
    }

    /// Whether it refuses what is new at its limit. In a classic queue the argument counts, in a quorum queue the policy: the worse of them is
    /// taken, so that neither depends on the version. `reject-publish-dlx` is for classic queues: a quorum queue takes it, knows nothing of
    /// it, and drops what is oldest; so does a stream, whatever it is told.
    fn refuses_new(&self) -> bool {
        let refuses = |overflow: &Value| match overflow.as_str() {
            Some("reject-publish") => !self.is_stream,
            Some("reject-publish-dlx") => !self.is_stream && !self.is_quorum,
            _ => false,
        };
        let overflow = || self.all("x-overflow", "overflow");
        overflow().next().is_some() && overflow().all(refuses)
    }

    /// What it drops, and nobody has if it does not go elsewhere.
    pub(super) fn losses(&self) -> Vec<Weakness> {
        // How long a stream keeps messages (`x-max-age`) is what it is for, how much of them is not.
        let has_limit = self
            .set("x-max-length", "max-length")
            .or(self.set("x-max-length-bytes", "max-length-bytes"))
            .is_some();
        let found = [
            (has_limit && !self.refuses_new()).then_some(Weakness::RabbitMqDropsHead),
            self.set("x-message-ttl", "message-ttl").map(|_| Weakness::RabbitMqMessagesExpire),
        ];
        found.into_iter().flatten().collect()
    }

    /// What it is apart from that.
    pub(super) fn weaknesses(&self) -> Vec<Weakness> {
        let told = self.told;
        let members = told["members"].as_array().map_or(1, Vec::len);
        let found = [
            self.set("x-expires", "expires").map(|_| Weakness::RabbitMqQueueGoes),
            (told["auto_delete"] == true).then_some(Weakness::RabbitMqQueueGoes),
            (told["exclusive"] == true).then_some(Weakness::RabbitMqExclusive),
            // An exclusive one is never durable, whatever it was declared as.
            (told["durable"] == false && told["exclusive"] != true).then_some(Weakness::RabbitMqTransient),
            (self.is_quorum && members < 2).then_some(Weakness::RabbitMqOneMember),
            (!self.is_quorum && members < 2).then_some(Weakness::RabbitMqOneNode),
        ];
        found.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_two_ways_to_overflow_the_worse_counts() {
        let losses = |kind: &str, own: Value, policy: Value| {
            let arguments = json!({ "x-max-length": 9, "x-overflow": own });
            let policies = json!({ "overflow": policy });
            let told =
                json!({ "type": kind, "arguments": arguments, "effective_policy_definition": policies });
            Queue::new(&told).losses()
        };
        for kind in ["quorum", "classic"] {
            for (own, policy, drops) in [
                (json!("reject-publish"), Value::Null, false),
                (Value::Null, json!("reject-publish"), false),
                (json!("reject-publish"), json!("reject-publish"), false),
                (json!("reject-publish"), json!("drop-head"), true),
                (json!("drop-head"), json!("reject-publish"), true),
                (Value::Null, Value::Null, true),
            ] {
                let found = losses(kind, own.clone(), policy.clone());
                assert_eq!(found, vec![Weakness::RabbitMqDropsHead; usize::from(drops)], "{own} {policy}");
            }
        }
    }
}
