//! What the management of a server says of its queues, and the grade that follows; see also `durability.rs`.

use std::time::Instant;

use anyhow::Result;
use lapin::options::QueueDeleteOptions;
use postrider_relay::durability::Weakness;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::rabbitmq::RabbitMqConfig;

use super::client::{Argument, Client, Table};
use super::faults::config;
use super::routing::shared;
use crate::support::PATIENCE;

/// What a queue drops goes to its dead-letter exchange, if there is one of that name: the server does not ask for that when a queue is declared.
#[tokio::test]
async fn fault_72_a_dead_letter_exchange_of_rabbitmq_that_is_not_there_keeps_nothing() -> Result<()> {
    const TTL: (&str, Argument) = ("x-message-ttl", Argument::Number(600_000));
    const LIMIT: (&str, Argument) = ("x-max-length", Argument::Number(9));
    const NOWHERE: (&str, Argument) = ("x-dead-letter-exchange", Argument::Text("dead-nowhere"));
    const THERE: (&str, Argument) = ("x-dead-letter-exchange", Argument::Text("dead-there"));
    const NAMELESS: (&str, Argument) = ("x-dead-letter-exchange", Argument::Text(""));
    const TO_A_QUEUE: (&str, Argument) = ("x-dead-letter-routing-key", Argument::Text("dead-letters"));
    const TO_NONE: (&str, Argument) = ("x-dead-letter-routing-key", Argument::Text("dead-nowhere"));
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("buried", lapin::ExchangeKind::Fanout).await?;
    client.exchange("dead-there", lapin::ExchangeKind::Fanout).await?;
    client.queue("dead-letters", &[]).await?;
    let target =
        Target::RabbitMq(RabbitMqConfig { management: server.management(), ..config(&server, "buried") });
    let (expire, cut) = (Weakness::RabbitMqMessagesExpire, Weakness::RabbitMqDropsHead);
    let cases: [(Table, Option<Weakness>); 7] = [
        (&[TTL, NOWHERE], Some(expire)),
        (&[LIMIT, NOWHERE], Some(cut)),
        (&[TTL, THERE], None),
        (&[LIMIT, THERE], None),
        (&[TTL, NAMELESS, TO_A_QUEUE], None),
        (&[TTL, NAMELESS, TO_NONE], Some(expire)),
        (&[TTL, NAMELESS], Some(expire)),
    ];
    for (at, (arguments, worse)) in cases.into_iter().enumerate() {
        client.queue("buried", arguments).await?;
        client.bind("buried", "buried", "").await?;
        let expected: Vec<Weakness> = worse.into_iter().chain([Weakness::RabbitMqOneNode]).collect();
        // The management hears of it a moment later.
        let begun = Instant::now();
        loop {
            let found = target.durability().await.unwrap().unwrap().weaknesses;
            if found == expected {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "case {at}: {found:?}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        client.channel.queue_delete("buried".into(), QueueDeleteOptions::default()).await?;
    }
    client.close().await;
    Ok(())
}
