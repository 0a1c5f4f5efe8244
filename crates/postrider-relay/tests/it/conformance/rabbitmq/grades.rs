//! What the management of a server says of its queues, and the grade that follows; see also `durability.rs`.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use postrider_relay::durability::Weakness;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::rabbitmq::RabbitMqConfig;

use super::client::{Argument, Client, Table};
use super::faults::config;
use super::routing::shared;
use crate::support::PATIENCE;

const CLASSIC: Weakness = Weakness::RabbitMqOneNode;
const EXPIRES: Weakness = Weakness::RabbitMqMessagesExpire;
const DROPS: Weakness = Weakness::RabbitMqDropsHead;
const TTL: (&str, Argument) = ("x-message-ttl", Argument::Number(600_000));
const LIMIT: (&str, Argument) = ("x-max-length", Argument::Number(9));

/// The management hears of what was made a moment later, and of a policy a few seconds.
async fn until_graded(target: &Target, expected: &[Weakness], what: &str) {
    let begun = Instant::now();
    loop {
        let found = target.durability().await.unwrap().unwrap().weaknesses;
        if found == expected {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {found:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// What a queue drops goes to its dead-letter exchange, if there is one of that name: the server does not ask for that when a queue is declared.
#[tokio::test]
async fn fault_72_a_dead_letter_exchange_of_rabbitmq_that_is_not_there_keeps_nothing() -> Result<()> {
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
    client.bind("dead-letters", "dead-there", "").await?;
    let target =
        Target::RabbitMq(RabbitMqConfig { management: server.management(), ..config(&server, "buried") });
    let cases: [(Table, Option<Weakness>); 7] = [
        (&[TTL, NOWHERE], Some(EXPIRES)),
        (&[LIMIT, NOWHERE], Some(DROPS)),
        (&[TTL, THERE], None),
        (&[LIMIT, THERE], None),
        (&[TTL, NAMELESS, TO_A_QUEUE], None),
        (&[TTL, NAMELESS, TO_NONE], Some(EXPIRES)),
        (&[TTL, NAMELESS], Some(EXPIRES)),
    ];
    for (at, (arguments, worse)) in cases.into_iter().enumerate() {
        client.queue("buried", arguments).await?;
        client.bind("buried", "buried", "").await?;
        let expected: Vec<Weakness> = worse.into_iter().chain([CLASSIC]).collect();
        until_graded(&target, &expected, &format!("case {at}")).await;
        client.channel.queue_delete("buried".into(), QueueDeleteOptions::default()).await?;
    }
    client.close().await;
    Ok(())
}

/// A dead-letter exchange that is there keeps what its queues keep: nothing where it leads to none, or back to where the message was.
#[tokio::test]
async fn fault_72_dead_letters_of_rabbitmq_are_followed_to_the_queues_that_keep_them() -> Result<()> {
    const fn to(exchange: &'static str) -> (&'static str, Argument) {
        ("x-dead-letter-exchange", Argument::Text(exchange))
    }
    const fn with(key: &'static str) -> (&'static str, Argument) {
        ("x-dead-letter-routing-key", Argument::Text(key))
    }
    const UNBOUND: Table = &[TTL, to("followed-unbound")];
    const DIRECT: Table = &[TTL, to("followed-direct"), with("right")];
    const ASTRAY: Table = &[TTL, to("followed-direct"), with("wrong")];
    const OWN_KEY: Table = &[TTL, to("followed-direct")];
    const TOPIC: Table = &[TTL, to("followed-topic"), with("dead.a.b")];
    const TOPIC_ASTRAY: Table = &[TTL, to("followed-topic"), with("a.dead")];
    const CUT: Table = &[TTL, to(""), with("followed-cut")];
    const TRANSIENT: Table = &[TTL, to(""), with("followed-transient")];
    const TO_ITSELF: Table = &[TTL, to("followed")];
    const TO_ITSELF_BY_NAME: Table = &[LIMIT, to(""), with("followed")];
    const ROUND: Table = &[TTL, to(""), with("followed-back")];
    const ON: Table = &[TTL, to(""), with("followed-on")];
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("followed", lapin::ExchangeKind::Fanout).await?;
    client.exchange("followed-unbound", lapin::ExchangeKind::Fanout).await?;
    client.exchange("followed-direct", lapin::ExchangeKind::Direct).await?;
    client.exchange("followed-topic", lapin::ExchangeKind::Topic).await?;
    client.queue("followed-good", &[]).await?;
    client.bind("followed-good", "followed-direct", "right").await?;
    client.bind("followed-good", "followed-topic", "dead.#").await?;
    client.queue("followed-cut", &[LIMIT]).await?;
    client.queue_as("followed-transient", QueueDeclareOptions::default(), &[]).await?;
    // Two that pass dead letters on: back to where they come from, and to one that keeps them.
    client.queue("followed-back", TO_ITSELF).await?;
    client.queue("followed-on", DIRECT).await?;
    let target =
        Target::RabbitMq(RabbitMqConfig { management: server.management(), ..config(&server, "followed") });
    let cases: [(&str, Table, &[Weakness]); 12] = [
        ("unbound", UNBOUND, &[EXPIRES, CLASSIC]),
        ("direct", DIRECT, &[CLASSIC]),
        ("direct, another key", ASTRAY, &[EXPIRES, CLASSIC]),
        ("direct, the key of the event", OWN_KEY, &[CLASSIC]),
        ("topic", TOPIC, &[CLASSIC]),
        ("topic, another key", TOPIC_ASTRAY, &[EXPIRES, CLASSIC]),
        ("to one with a limit", CUT, &[DROPS, CLASSIC]),
        ("to a transient one", TRANSIENT, &[Weakness::RabbitMqTransient, CLASSIC]),
        ("to itself", TO_ITSELF, &[EXPIRES, CLASSIC]),
        ("to itself, by name", TO_ITSELF_BY_NAME, &[DROPS, CLASSIC]),
        ("round", ROUND, &[EXPIRES, CLASSIC]),
        ("on to another", ON, &[CLASSIC]),
    ];
    for (what, arguments, expected) in cases {
        client.queue("followed", arguments).await?;
        client.bind("followed", "followed", "").await?;
        until_graded(&target, expected, what).await;
        client.channel.queue_delete("followed".into(), QueueDeleteOptions::default()).await?;
    }
    client.close().await;
    Ok(())
}

/// What no binding takes goes to the alternate exchange, and is confirmed by the queues behind that one.
#[tokio::test]
async fn fault_72_queues_behind_an_alternate_exchange_of_rabbitmq_are_graded() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("strays", lapin::ExchangeKind::Fanout).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let alternate =
        BTreeMap::from([(ShortString::from("alternate-exchange"), AMQPValue::LongString("strays".into()))]);
    for (name, kind) in [("straying", lapin::ExchangeKind::Topic), ("unbound", lapin::ExchangeKind::Fanout)] {
        let arguments = FieldTable::from(alternate.clone());
        client.channel.exchange_declare(name.into(), kind, durable, arguments).await?;
    }
    client.exchange("straying-by-policy", lapin::ExchangeKind::Topic).await?;
    client.queue("straying", &[]).await?;
    client.bind("straying", "straying", "order.#").await?;
    client.bind("straying", "straying-by-policy", "order.#").await?;
    let target = |exchange: &str| {
        Target::RabbitMq(RabbitMqConfig { management: server.management(), ..config(&server, exchange) })
    };
    until_graded(&target("straying"), &[CLASSIC], "nobody is behind it").await;
    until_graded(&target("unbound"), &[Weakness::RabbitMqNoQueue], "nobody at all").await;
    client.queue("strays", &[LIMIT]).await?;
    client.bind("strays", "strays", "").await?;
    until_graded(&target("straying"), &[DROPS, CLASSIC], "a weak queue is behind it").await;
    until_graded(&target("unbound"), &[DROPS, CLASSIC], "only that one").await;
    until_graded(&target("straying-by-policy"), &[CLASSIC], "there is no policy").await;
    let policy = r#"{"alternate-exchange":"strays"}"#;
    server.control(["set_policy", "straying", "^straying-by-policy$", policy]).await?;
    until_graded(&target("straying-by-policy"), &[DROPS, CLASSIC], "by policy").await;
    server.control(["clear_policy", "straying"]).await?;
    client.close().await;
    Ok(())
}

/// A quorum queue goes by its policy, whatever it was declared with.
#[tokio::test]
async fn fault_72_a_policy_makes_a_quorum_queue_of_rabbitmq_drop_what_it_was_told_to_refuse() -> Result<()> {
    const REFUSING: Table = &[
        ("x-queue-type", Argument::Text("quorum")),
        LIMIT,
        ("x-overflow", Argument::Text("reject-publish")),
    ];
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("overruled", lapin::ExchangeKind::Fanout).await?;
    client.queue("overruled", REFUSING).await?;
    client.bind("overruled", "overruled", "").await?;
    let target =
        Target::RabbitMq(RabbitMqConfig { management: server.management(), ..config(&server, "overruled") });
    until_graded(&target, &[Weakness::RabbitMqOneMember], "as it was declared").await;
    let policy = r#"{"overflow":"drop-head"}"#;
    server.control(["set_policy", "overruled", "^overruled$", policy]).await?;
    until_graded(&target, &[DROPS, Weakness::RabbitMqOneMember], "by policy").await;
    server.control(["clear_policy", "overruled"]).await?;
    client.close().await;
    Ok(())
}
