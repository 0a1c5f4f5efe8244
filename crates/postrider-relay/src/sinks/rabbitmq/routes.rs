//! Where an exchange leads to.

use std::collections::BTreeSet;

use serde_json::Value;

use super::management::{Asked, encoded};
use crate::sink::{Unavailable, UnavailableKind};

/// Exchanges can be bound to exchanges; so many of them are looked at.
const MOST_EXCHANGES: usize = 100;

/// What a message may come to.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) queues: BTreeSet<String>,
    /// On the way there.
    pub(super) exchanges: BTreeSet<String>,
}

/// The queues that an exchange leads to with this routing key, also through other exchanges, except those that were passed. Where it cannot
/// be told whether a binding takes the message, it may.
pub(super) async fn reached(
    asked: &Asked<'_>,
    exchange: &str,
    key: Option<&str>,
    passed: &BTreeSet<String>,
) -> Result<Reached, Unavailable> {
    let mut reached = Reached::default();
    let mut open = vec![exchange.to_owned()];
    while let Some(exchange) = open.pop() {
        // The one without a name leads to the queue that the routing key names. The keys of events name types, and no queues.
        if exchange.is_empty() {
            if let Some(key) = key
                && asked.queue(key).await?.is_some()
            {
                reached.queues.insert(key.to_owned());
            }
            continue;
        }
        let is_new = !passed.contains(&exchange) && !reached.exchanges.contains(&exchange);
        if !is_new || reached.exchanges.len() == MOST_EXCHANGES {
            continue;
        }
        let path = format!("/api/exchanges/{}/{}", asked.vhost, encoded(&exchange));
        reached.exchanges.insert(exchange);
        // The server takes any name for a dead-letter or alternate exchange, and drops what is for one that is not there.
        let Some(told) = asked.get(&path).await? else { continue };
        let bindings = asked.get(&format!("{path}/bindings/source")).await?.unwrap_or_default();
        let mut is_taken = false;
        for binding in bindings.as_array().into_iter().flatten() {
            let Some(to) = binding["destination"].as_str() else { continue };
            let takes = takes(&told, binding["routing_key"].as_str().unwrap_or_default(), key);
            if takes == Some(false) {
                continue;
            }
            is_taken |= takes == Some(true);
            if binding["destination_type"] == "exchange" {
                open.push(to.to_owned());
            } else {
                reached.queues.insert(to.to_owned());
            }
        }
        // It gets what no binding has taken, and nothing else.
        if !is_taken {
            open.extend(alternate(asked, &told).await?);
        }
    }
    Ok(reached)
}

/// Whether a binding of this exchange takes a message, if it can be told. Headers, and the kinds that plugins bring, cannot.
fn takes(exchange: &Value, bound: &str, key: Option<&str>) -> Option<bool> {
    match exchange["type"].as_str() {
        Some("fanout") => Some(true),
        Some("direct") => Some(key? == bound),
        Some("topic") => {
            let pattern: Vec<&str> = bound.split('.').collect();
            let words: Vec<&str> = key?.split('.').collect();
            Some(matches(&pattern, &words))
        }
        _ => None,
    }
}

/// As a topic exchange compares: `*` is any word, `#` any number of them.
fn matches(pattern: &[&str], words: &[&str]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return words.is_empty() };
    if *first == "#" {
        return (0..=words.len()).any(|skipped| matches(rest, &words[skipped..]));
    }
    let Some((word, others)) = words.split_first() else { return false };
    (*first == "*" || first == word) && matches(rest, others)
}

/// The exchange that gets what this one has no binding for. Of argument and policy the server takes the argument.
async fn alternate(asked: &Asked<'_>, exchange: &Value) -> Result<Option<String>, Unavailable> {
    const NAME: &str = "alternate-exchange";
    if let Some(own) = exchange["arguments"][NAME].as_str() {
        return Ok(Some(own.to_owned()));
    }
    let Some(policy) = exchange["policy"].as_str().filter(|policy| !policy.is_empty()) else {
        return Ok(None);
    };
    // Of an exchange only the policy's name is told, and what it says not to every user that may look at queues.
    match asked.get(&format!("/api/policies/{}/{}", asked.vhost, encoded(policy))).await {
        Ok(told) => Ok(told.and_then(|told| told["definition"][NAME].as_str().map(str::to_owned))),
        Err(why) if why.kind == UnavailableKind::Forbidden => Ok(None),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_binding_takes_what_its_exchange_says() {
        let of = |kind: &str, bound, key| takes(&json!({ "type": kind }), bound, key);
        assert_eq!(of("fanout", "a", None), Some(true));
        assert_eq!(of("direct", "a", None), None);
        assert_eq!(of("headers", "a", Some("a")), None);
        assert_eq!((of("direct", "a", Some("a")), of("direct", "a", Some("b"))), (Some(true), Some(false)));
        for (bound, key) in [("#", ""), ("#", "a.b"), ("a.*", "a.b"), ("a.#.c", "a.c"), ("#.c", "a.b.c")] {
            assert_eq!(of("topic", bound, Some(key)), Some(true), "{bound} {key}");
        }
        for (bound, key) in [("", "a"), ("a.*", "a"), ("a.*", "a.b.c"), ("b.#", "a.b"), ("#.c", "a.c.b")] {
            assert_eq!(of("topic", bound, Some(key)), Some(false), "{bound} {key}");
        }
    }
}
