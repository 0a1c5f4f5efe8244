//! What goes wrong between a sink and RabbitMQ, by number.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, ShortString};
use postrider::log::Record;
use postrider_relay::sinks::rabbitmq::{ExchangeKind, RabbitMqConfig, RabbitMqSink, Unroutable};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, RefusalKind, Report, UnavailableKind};
use postrider_testkit::{Broker, Direction, Proxy, RabbitMq};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::{deliver, deliver_to, delivered, event};
use super::client::{Argument, CLASSIC, Client, QUORUM, Table};
use super::routing::shared;

/// Nothing that ends takes longer, on the busiest machine.
const LONGEST: Duration = Duration::from_mins(2);

/// A fanout exchange of this name, and a queue of that name that gets everything.
pub(super) async fn listened(client: &Client, name: &str, queue: Table) -> Result<()> {
    client.exchange(name, lapin::ExchangeKind::Fanout).await?;
    client.queue(name, queue).await?;
    client.bind(name, name, "").await
}

pub(super) fn config(server: &Broker<RabbitMq>, exchange: &str) -> RabbitMqConfig {
    RabbitMqConfig { exchange: exchange.to_owned(), ..RabbitMqConfig::new(server.url()) }
}

/// On a busy machine it may take more than one attempt.
pub(super) async fn opened(config: &RabbitMqConfig) -> RabbitMqSink {
    let begun = Instant::now();
    loop {
        match RabbitMqSink::open(config.clone()).await {
            Ok(sink) => return sink,
            Err(why) => assert!(begun.elapsed() < LONGEST, "{why:?}"),
        }
    }
}

async fn until_delivered(sink: &mut RabbitMqSink, records: &[Record], to: &str) {
    let begun = Instant::now();
    loop {
        let report = deliver(sink, records, to).await;
        if report.unavailable.is_none() {
            assert_eq!(report.outcomes, vec![Outcome::Delivered; records.len()]);
            return;
        }
        assert!(begun.elapsed() < LONGEST, "{:?}", report.unavailable);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Stored, and the confirmation is lost: it comes again, and is known by its id.
async fn confirmations_lost(server: &Broker<RabbitMq>) -> Result<()> {
    let client = Client::connect(&server.url()).await?;
    listened(&client, "lost", CLASSIC).await?;
    let proxy = Proxy::start(server.address()).await?;
    let config = RabbitMqConfig {
        url: format!("amqp://127.0.0.1:{}", proxy.port()),
        timeout: Span(Duration::from_secs(1)),
        ..config(server, "lost")
    };
    let mut sink = opened(&config).await;
    until_delivered(&mut sink, &[event("a")], "x").await;
    let records = [event("a"), event("b"), event("c")];
    proxy.drop_direction(Direction::ToClient);
    let report = deliver(&mut sink, &records, "x").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
    assert_eq!(report.unavailable.context("it was told nothing")?.kind, UnavailableKind::Timeout);
    // They are there, or on their way there, and nobody was told.
    let mut before = client.drain("lost").await?;
    while before.len() < 4 {
        before.extend(client.drain("lost").await?);
    }
    proxy.heal();
    proxy.reset();
    until_delivered(&mut sink, &records, "x").await;
    let after = client.drain("lost").await?;
    for record in &records {
        for read in [&before, &after] {
            let times = read.iter().filter(|message| message.id == record.id.to_string()).count();
            assert!(times >= 1, "it was not there, or not again with the same id");
        }
    }
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn fault_66_rabbitmq_gets_an_event_again_whose_confirmation_was_lost() -> Result<()> {
    confirmations_lost(&shared().await?).await
}

#[tokio::test]
async fn fault_66_rabbitmq_3_gets_an_event_again_whose_confirmation_was_lost() -> Result<()> {
    confirmations_lost(&Broker::private(RabbitMq::old()).await?).await
}

/// An exchange that is not there, is another one, or is not for us.
#[tokio::test]
async fn fault_68_an_exchange_that_is_missing_or_forbidden_is_named() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "deleted", CLASSIC).await?;
    let mut sink = RabbitMqSink::open(config(&server, "deleted")).await.unwrap();
    delivered(&mut sink, &[event("a")], "x").await;
    client.delete_exchange("deleted").await?;
    let report = deliver(&mut sink, &[event("a"), event("b")], "x").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 2]);
    let why = report.unavailable.context("it was delivered")?;
    assert_eq!(why.kind, UnavailableKind::Missing);
    assert!(why.source.to_string().contains("no exchange 'deleted'"), "{}", why.source);
    // It is declared again, and nobody listens there any more.
    let report = deliver(&mut sink, &[event("a")], "x").await;
    let why = report.unavailable.context("it was delivered")?;
    assert!(why.source.to_string().contains("no queue is bound"), "{}", why.source);
    client.bind("deleted", "deleted", "").await?;
    delivered(&mut sink, &[event("a")], "x").await;

    let other = RabbitMqConfig { kind: ExchangeKind::Topic, ..config(&server, "deleted") };
    let why = RabbitMqSink::open(other).await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Missing);
    assert!(why.source.to_string().contains("`deleted` is there, and is another one"), "{}", why.source);
    client.close().await;
    Ok(())
}

/// Users that may not do everything, in a virtual host of their own.
#[tokio::test]
async fn fault_68_what_a_user_may_not_do_concerns_that_alone() -> Result<()> {
    let server = shared().await?;
    server.control(["add_vhost", "shop"]).await?;
    for (user, configure, write) in
        [("owner", ".*", ".*"), ("writer", "^$", "events"), ("reader", "^$", "^$")]
    {
        server.control(["add_user", user, "pw"]).await?;
        server.control(["set_permissions", "-p", "shop", user, configure, write, ".*"]).await?;
    }
    server.control(["set_topic_permissions", "-p", "shop", "writer", "events", "^mine", ".*"]).await?;
    let url = |user: &str| format!("amqp://{user}:pw@{}/shop", server.address());
    let client = Client::connect(&url("owner")).await?;
    let topic = |user: &str| RabbitMqConfig { kind: ExchangeKind::Topic, ..RabbitMqConfig::new(url(user)) };

    let why = RabbitMqSink::open(topic("writer")).await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Missing);
    assert!(why.source.to_string().contains("may not declare it"), "{}", why.source);
    client.exchange("events", lapin::ExchangeKind::Topic).await?;
    client.queue("all", CLASSIC).await?;
    client.bind("all", "events", "#").await?;

    // Who may not declare it can still publish to it, and where it may not, the others flow.
    let mut sink = RabbitMqSink::open(topic("writer")).await.unwrap();
    let events =
        [(event("a"), "mine.1"), (event("b"), "theirs"), (event("b"), "mine.2"), (event("c"), "mine.3")];
    let report = deliver_to(&mut sink, events.iter().map(|(record, to)| (record, *to))).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [first, Outcome::Refused(refusal), behind, last] = report.outcomes.as_slice() else {
        panic!("{:?}", report.outcomes);
    };
    assert_eq!(refusal.kind, RefusalKind::Rejected);
    assert!(refusal.reason.contains("theirs"), "{}", refusal.reason);
    assert_eq!([first, behind, last], [&Outcome::Delivered, &Outcome::NotSent, &Outcome::Delivered]);
    forbidden_in_other_words(&client, topic("writer")).await?;

    let mut reader = RabbitMqSink::open(topic("reader")).await.unwrap();
    let report = deliver(&mut reader, &[event("a")], "mine.1").await;
    let why = report.unavailable.context("it was delivered")?;
    assert_eq!((report.outcomes, why.kind), (vec![Outcome::NotSent], UnavailableKind::Forbidden));
    let nowhere = RabbitMqConfig::new(server.url().replace("%2f", "nowhere"));
    let why = RabbitMqSink::open(nowhere).await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Missing, "{}", why.source);
    client.close().await;
    Ok(())
}

/// Routing keys that the server's words do not tell apart: it cuts what it says at 255 bytes, and a key may hold the words that follow it. They
/// are refused, and no others; and what was on its way with them comes once more at most each time.
async fn forbidden_in_other_words(client: &Client, config: RabbitMqConfig) -> Result<()> {
    client.drain("all").await?;
    let long = |end: &str| format!("theirs.{}{end}", "y".repeat(240));
    let forbidden = [
        format!("theirs.{}", "y".repeat(200)),
        long("1"),
        long("2"),
        "theirs' in exchange 'events' in vhost '/".to_owned(),
        "theirs".to_owned(),
    ];
    let events: Vec<(Record, &str)> = (0..40)
        .map(|at| {
            let to = if at % 8 == 3 { forbidden[at / 8].as_str() } else { "mine.4" };
            (event(&format!("other-{at}")), to)
        })
        .collect();
    // All of them on one channel: what the server minds in one takes the confirmations of the others along.
    let mut sink = opened(&RabbitMqConfig { channels: 1, ..config }).await;
    let report = deliver_to(&mut sink, events.iter().map(|(record, to)| (record, *to))).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for ((_, to), outcome) in events.iter().zip(&report.outcomes) {
        match outcome {
            Outcome::Delivered => assert_eq!(*to, "mine.4"),
            Outcome::Refused(refusal) => {
                assert_eq!(refusal.kind, RefusalKind::Rejected);
                assert!(refusal.reason.contains(to), "{}", refusal.reason);
                assert_ne!(*to, "mine.4");
            }
            Outcome::NotSent => panic!("{to} was not sent"),
        }
    }
    let stored: Vec<String> = client.drain("all").await?.into_iter().map(|message| message.id).collect();
    for (record, to) in &events {
        let copies = stored.iter().filter(|id| **id == record.id.to_string()).count();
        let expected = if *to == "mine.4" { 1..=forbidden.len() + 1 } else { 0..=0 };
        assert!(expected.contains(&copies), "{copies} of {to}");
    }
    Ok(())
}

/// TLS is spoken to a port that does not know it.
#[tokio::test]
async fn amqps_to_a_port_of_rabbitmq_without_tls_is_named() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let wrong = RabbitMqConfig::new(format!("amqps://guest:guest@{}", listener.local_addr()?));
    // As RabbitMQ answers what is no AMQP; and it stays, as otherwise the answer may be lost with the connection.
    let greeting = async {
        let (mut socket, _) = listener.accept().await?;
        socket.write_all(b"AMQP\x00\x00\x09\x01").await?;
        let _ = socket.read_to_end(&mut Vec::new()).await;
        anyhow::Ok(())
    };
    let (opened, greeted) = tokio::join!(RabbitMqSink::open(wrong), greeting);
    greeted?;
    let why = opened.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Connection, "{}", why.source);
    assert!(why.source.to_string().contains("may not speak TLS"), "{}", why.source);
    Ok(())
}

/// A port that speaks TLS answers who does not with an alert, and not with a greeting.
#[tokio::test]
async fn amqp_to_a_port_of_rabbitmq_with_tls_is_named() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let wrong = RabbitMqConfig::new(format!("amqp://guest:guest@{}", listener.local_addr()?));
    let alert = async {
        let (mut socket, _) = listener.accept().await?;
        // Fatal, and an unexpected message.
        socket.write_all(b"\x15\x03\x03\x00\x02\x02\x0a").await?;
        let _ = socket.read_to_end(&mut Vec::new()).await;
        anyhow::Ok(())
    };
    let (opened, alerted) = tokio::join!(RabbitMqSink::open(wrong), alert);
    alerted?;
    let why = opened.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Connection, "{}", why.source);
    assert!(why.source.to_string().contains("may speak TLS"), "{}", why.source);
    Ok(())
}

/// What has nowhere to go is refused, and the rest is not; as far as anything was answered.
fn assert_right(report: &Report, events: &[(Record, &str)]) {
    for ((_, to), outcome) in events.iter().zip(&report.outcomes) {
        match outcome {
            Outcome::Delivered => assert_eq!(*to, "good", "nobody has it, and it counts as delivered"),
            Outcome::Refused(refusal) => {
                assert_eq!((*to, refusal.kind), ("bad", RefusalKind::Unroutable), "{}", refusal.reason);
            }
            Outcome::NotSent => {
                assert!(report.unavailable.is_some(), "an event was not sent, without a reason");
            }
        }
    }
}

/// The server's memory is short: nothing more is sent, and the reason is said. What comes back as unroutable when it goes on is not taken for
/// delivered: it may come with a confirmation of what was given up.
#[tokio::test]
async fn fault_69_a_blocked_rabbitmq_is_left_alone_until_it_is_not() -> Result<()> {
    let server = Broker::private(RabbitMq::new()).await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("events", lapin::ExchangeKind::Topic).await?;
    client.queue("events", CLASSIC).await?;
    client.bind("events", "events", "good").await?;
    let proxy = Proxy::start(server.address()).await?;
    let through = format!("amqp://127.0.0.1:{}", proxy.port());
    let config = RabbitMqConfig {
        kind: ExchangeKind::Topic,
        unroutable: Some(Unroutable::Park),
        ..RabbitMqConfig::new(through)
    };
    let mut sink = opened(&config).await;
    delivered(&mut sink, &[event("a")], "good").await;
    server.control(["set_vm_memory_high_watermark", "0"]).await?;
    // Of two keys in order; and each third goes nowhere, with a key of its own.
    let late: Vec<(Record, &str)> = (0..75)
        .map(|at| match at % 3 {
            2 => (event(&format!("nowhere-{at}")), "bad"),
            key => (event(["a", "b"][key]), "good"),
        })
        .collect();
    let late_events = || late.iter().map(|(record, to)| (record, *to));
    let report = deliver_to(&mut sink, late_events()).await;
    assert_right(&report, &late);
    let why = report.unavailable.context("it was not blocked")?;
    assert_eq!(why.kind, UnavailableKind::Blocked, "{}", why.source);
    assert!(why.source.to_string().contains("low on memory"), "{}", why.source);
    let (sent, connections) = (proxy.carried(Direction::ToServer), proxy.accepted());
    for _ in 0..20 {
        let report = deliver_to(&mut sink, late_events()).await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; late.len()]);
        assert_eq!(report.unavailable.map(|why| why.kind), Some(UnavailableKind::Blocked));
    }
    let more = proxy.carried(Direction::ToServer) - sent;
    assert!(more < 100, "{more} bytes were sent to a server that wants none");
    assert_eq!(proxy.accepted(), connections, "it has connected again");
    server.control(["set_vm_memory_high_watermark", "absolute", "512MB"]).await?;
    let begun = Instant::now();
    loop {
        let report = deliver_to(&mut sink, late_events()).await;
        assert_right(&report, &late);
        if report.unavailable.is_none() {
            break;
        }
        assert!(begun.elapsed() < LONGEST, "{:?}", report.unavailable);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Only with another one is it certain whose each answer is.
    assert!(proxy.accepted() > connections, "the connection of what was given up was published on again");
    let mut ids: Vec<String> = client.drain("events").await?.into_iter().map(|message| message.id).collect();
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    for key in ["a", "b"] {
        let sent: Vec<String> = late
            .iter()
            .filter(|(record, _)| record.key.as_deref() == Some(key))
            .map(|(record, _)| record.id.to_string())
            .collect();
        let stored: Vec<&String> = ids.iter().filter(|id| sent.contains(id)).collect();
        assert_eq!(stored, sent.iter().collect::<Vec<_>>());
    }
    client.close().await;
    Ok(())
}

/// The server is there, and nobody is at home.
#[tokio::test]
async fn fault_70_a_frozen_rabbitmq_is_noticed_by_our_own_deadline() -> Result<()> {
    let server = Broker::private(RabbitMq::new()).await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "events", QUORUM).await?;
    client.close().await;
    let config = RabbitMqConfig { timeout: Span(Duration::from_secs(1)), ..config(&server, "events") };
    let mut sink = opened(&config).await;
    until_delivered(&mut sink, &[event("a")], "x").await;
    server.freeze()?;
    let begun = Instant::now();
    let records = [event("a"), event("b"), event("a")];
    let report = deliver(&mut sink, &records, "x").await;
    let took = begun.elapsed();
    server.thaw()?;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
    assert_eq!(report.unavailable.map(|why| why.kind), Some(UnavailableKind::Timeout));
    assert!(took < Duration::from_secs(20), "two heartbeats are 20 s, and it took {took:?}");
    until_delivered(&mut sink, &records, "x").await;
    Ok(())
}

/// A queue that takes ten, and says so: what it did not take comes again, in order.
#[tokio::test]
async fn fault_71_what_a_full_queue_of_rabbitmq_rejects_comes_again_in_order() -> Result<()> {
    const FULL: Table =
        &[("x-max-length", Argument::Number(10)), ("x-overflow", Argument::Text("reject-publish"))];
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "full", FULL).await?;
    let mut sink = RabbitMqSink::open(config(&server, "full")).await.unwrap();
    let keys = ["a", "b", "c"];
    let records: Vec<Record> = (0..90).map(|at| event(keys[at % 3])).collect();
    let mut open: Vec<Record> = records.clone();
    let (mut read, mut waited) = (Vec::new(), 0);
    let begun = Instant::now();
    while !open.is_empty() {
        // A consumer that takes some while it is being filled: it would have room again for the event behind the one it rejected.
        let (report, taken) = tokio::join!(deliver(&mut sink, &open, "x"), client.take("full", 7));
        read.extend(taken?);
        let mut outcomes = report.outcomes.iter();
        open.retain(|_| outcomes.next() != Some(&Outcome::Delivered));
        if let Some(why) = report.unavailable {
            assert_eq!(why.kind, UnavailableKind::Full, "{}", why.source);
            waited += 1;
        }
        assert!(begun.elapsed() < LONGEST, "{} are left", open.len());
    }
    assert!(waited > 0, "it was never full");
    read.extend(client.drain("full").await?);
    for key in keys {
        let sent: Vec<String> = records
            .iter()
            .filter(|record| record.key.as_deref() == Some(key))
            .map(|record| record.id.to_string())
            .collect();
        let mut stored: Vec<String> =
            read.iter().map(|message| message.id.clone()).filter(|id| sent.contains(id)).collect();
        let mut seen = std::collections::HashSet::new();
        stored.retain(|id| seen.insert(id.clone()));
        assert_eq!(stored, sent);
    }
    client.close().await;
    Ok(())
}

/// An event that is too large for the server, which closes the channel: it is refused, and everything else flows.
#[tokio::test]
async fn fault_73_an_event_too_large_for_rabbitmq_concerns_its_key_alone() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "large", CLASSIC).await?;
    let mut sink = RabbitMqSink::open(config(&server, "large")).await.unwrap();
    let records: Vec<Record> = (0..40)
        .map(|at| {
            let record = event(&format!("{}", at % 8));
            let size = if at == 12 { 20 << 20 } else { 100 };
            Record { payload: format!("\"{}\"", "x".repeat(size)), ..record }
        })
        .collect();
    for _ in 0..2 {
        let report = deliver(&mut sink, &records, "x").await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        for (at, outcome) in report.outcomes.iter().enumerate() {
            match outcome {
                Outcome::Refused(refusal) => {
                    assert_eq!((at, refusal.kind), (12, RefusalKind::TooLarge));
                    assert!(refusal.reason.contains("max_message_size"), "{}", refusal.reason);
                }
                Outcome::NotSent => assert!(at > 12 && at % 8 == 4, "{at} was not sent"),
                Outcome::Delivered => assert!(at < 12 || at % 8 != 4, "{at} passed the one that was refused"),
            }
        }
    }
    assert_eq!(client.drain("large").await?.len(), 2 * (40 - 4));
    client.close().await;
    Ok(())
}

/// Two of three nodes say nothing: a quorum queue confirms nothing, and goes on when they are back. Only when there is time for it.
#[tokio::test]
async fn fault_74_rabbitmq_without_a_quorum_confirms_nothing() -> Result<()> {
    const THREE: Table =
        &[("x-queue-type", Argument::Text("quorum")), ("x-quorum-initial-group-size", Argument::Number(3))];
    if std::env::var_os("POSTRIDER_SOAK").is_none() {
        return Ok(());
    }
    let server = Broker::private(RabbitMq::new().with_nodes(3)).await?;
    let begun = Instant::now();
    while !server.control(["cluster_status", "--formatter", "json"]).await?.contains("testkit2@localhost") {
        assert!(begun.elapsed() < LONGEST, "the nodes do not find each other");
    }
    let client = Client::connect(&server.url()).await?;
    listened(&client, "events", THREE).await?;
    let config = RabbitMqConfig { timeout: Span(Duration::from_secs(2)), ..config(&server, "events") };
    let mut sink = opened(&config).await;
    until_delivered(&mut sink, &[event("a")], "x").await;
    let others = [server.node(1)?, server.node(2)?];
    others.iter().try_for_each(|node| node.freeze())?;
    let records = [event("a"), event("b"), event("a")];
    let report = deliver(&mut sink, &records, "x").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
    assert!(report.unavailable.is_some());
    others.iter().try_for_each(|node| node.signal(postrider_testkit::Signal::CONT))?;
    until_delivered(&mut sink, &records, "x").await;
    let stored: std::collections::HashSet<String> =
        client.drain("events").await?.into_iter().map(|message| message.id).collect();
    assert!(records.iter().all(|record| stored.contains(&record.id.to_string())));
    client.close().await;
    Ok(())
}

/// An exchange that was declared with arguments of its own is the one that is meant: what is not asked for is not compared.
#[tokio::test]
async fn a_rabbitmq_exchange_with_arguments_of_its_own_is_published_to() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "alternate", CLASSIC).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let to = AMQPValue::LongString("alternate".into());
    let arguments: BTreeMap<ShortString, AMQPValue> = [("alternate-exchange".into(), to)].into();
    let kind = lapin::ExchangeKind::Topic;
    client.channel.exchange_declare("argued".into(), kind, durable, arguments.into()).await?;
    client.queue("argued", CLASSIC).await?;
    client.bind("argued", "argued", "good").await?;
    let topic = RabbitMqConfig { kind: ExchangeKind::Topic, ..config(&server, "argued") };
    let mut sink = RabbitMqSink::open(topic).await.unwrap();
    delivered(&mut sink, &[event("a"), event("b")], "good").await;
    assert_eq!(client.drain("argued").await?.len(), 2);
    // Somebody is there to take it.
    delivered(&mut sink, &[event("a")], "elsewhere").await;
    assert_eq!(client.drain("alternate").await?.len(), 1);

    // One of another kind is another one, whatever else it has.
    let why = RabbitMqSink::open(config(&server, "argued")).await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Missing);
    assert!(why.source.to_string().contains("`argued` is there, and is another one"), "{}", why.source);
    client.close().await;
    Ok(())
}
