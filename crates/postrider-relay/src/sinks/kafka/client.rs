//! How the client library is set up.

use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use super::address::Address;
use super::config::KafkaConfig;
use super::error::wrong;
use crate::sink::Unavailable;

/// The most bytes of messages that are sent to one partition in one set. Brokers take a little more than that by default.
pub(super) const SET: usize = 1_000_000;

/// The most messages in the library's queue. What is beyond waits for room, so that a large batch is in memory once.
const QUEUE: usize = 10_000;

/// The largest message that is handed over, with its headers. A broker that gets a larger request than its `socket.request.max.bytes`, 100 MiB
/// by default, ends the connection without a word, each time. The rest of that is for what stands around a message.
const LARGEST: usize = (100 << 20) - (64 << 10);

/// What every client of ours has: producer and administrator.
pub(super) fn client(config: &KafkaConfig) -> Result<ClientConfig, Unavailable> {
    let address = Address::parse(&config.url).map_err(wrong)?;
    let mut client = ClientConfig::new();
    client
        .set("client.id", "postrider")
        .set("bootstrap.servers", &address.brokers)
        .set("security.protocol", protocol(&address))
        .set("socket.keepalive.enable", "true")
        .set("socket.nagle.disable", "true")
        // A connection that is dead without a word is replaced in time for the batch to be sent again by the same producer.
        .set("socket.timeout.ms", millis(config.timeout.0 / 3, 1_000, 60_000))
        .set("socket.connection.setup.timeout.ms", millis(config.timeout.0 / 3, 1_000, 30_000))
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        .set("retry.backoff.ms", "50")
        .set("retry.backoff.max.ms", "1000")
        // Looking for a topic must not make it.
        .set("allow.auto.create.topics", "false")
        .set_log_level(RDKafkaLogLevel::Warning);
    if let Some((user, password)) = &address.user {
        client
            .set("sasl.mechanism", config.sasl.name())
            .set("sasl.username", user)
            .set("sasl.password", password);
    }
    let files = [
        ("ssl.ca.location", &config.ca),
        ("ssl.certificate.location", &config.certificate),
        ("ssl.key.location", &config.certificate_key),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            // The library's own words about a file that is not there are long.
            std::fs::metadata(file)
                .map_err(|error| wrong(format!("cannot read {}: {error}", file.display())))?;
            client.set(name, file.to_string_lossy());
        }
    }
    Ok(client)
}

fn protocol(address: &Address) -> &'static str {
    match (address.is_over_tls, address.user.is_some()) {
        (false, false) => "PLAINTEXT",
        (false, true) => "SASL_PLAINTEXT",
        (true, false) => "SSL",
        (true, true) => "SASL_SSL",
    }
}

/// What a producer has beside that. `set` is the most bytes in one set.
pub(super) fn producer(config: &KafkaConfig, set: usize) -> Result<ClientConfig, Unavailable> {
    let mut client = client(config)?;
    client
        // Every broker that keeps the partition has it, and none has it twice.
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // A set that fails for good stops the producer, so that nothing behind it in its partition is sent.
        .set("enable.gapless.guarantee", "true")
        // Messages have no time of their own, else one could end before an earlier one: the batch has.
        .set("message.timeout.ms", "0")
        .set("request.timeout.ms", millis(config.timeout.0 / 3, 1_000, 30_000))
        .set("compression.type", config.compression.name())
        .set("linger.ms", config.linger.0.as_millis().to_string())
        .set("batch.size", set.to_string())
        .set("queue.buffering.max.messages", QUEUE.to_string())
        // Below that the brokers say what is too large.
        .set("message.max.bytes", LARGEST.to_string())
        .set("topic.metadata.propagation.max.ms", "1000");
    Ok(client)
}

fn millis(span: Duration, least: u128, most: u128) -> String {
    span.as_millis().clamp(least, most).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Span;

    /// By itself the library gives up a message after five minutes, though one behind it may still be sent: `enable.gapless.guarantee` does
    /// not count for those. Only a delivery that takes longer would show it.
    #[test]
    fn no_message_is_given_up_before_its_batch() {
        let patient = KafkaConfig { timeout: Span(Duration::from_mins(10)), ..KafkaConfig::new("kafka://a") };
        let settings = producer(&patient, SET).unwrap();
        assert_eq!(settings.get("message.timeout.ms"), Some("0"));
    }
}
