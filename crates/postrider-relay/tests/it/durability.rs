//! What each server says of itself, and the grade that follows. The table of the docs is the one that is applied.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_nats::jetstream::{self, stream};
use postrider_relay::durability::{Grade, Weakness};
use postrider_relay::sinks::file::{FileConfig, Fsync};
use postrider_relay::sinks::kafka::{CreateTopics, KafkaConfig};
use postrider_relay::sinks::nats::NatsConfig;
use postrider_relay::sinks::rabbitmq::RabbitMqConfig;
use postrider_relay::sinks::redis::RedisConfig;
use postrider_relay::sinks::{Target, null, stdout};
use postrider_relay::{SinkSettings, State, UnavailableKind};
use postrider_testkit::{Broker, Kafka, Nats, RabbitMq, Redis};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use serde_json::{Value, json};

use crate::support::{PATIENCE, database, emit, settings, sink};

async fn weaknesses(target: Target) -> Vec<Weakness> {
    target.durability().await.unwrap().unwrap().weaknesses
}

#[tokio::test]
async fn a_file_is_as_good_as_its_disk() {
    let file = FileConfig::new("events.ndjson");
    assert_eq!(weaknesses(Target::File(file.clone())).await, [Weakness::FileOnOneDisk]);
    let unsynced = Target::File(FileConfig { fsync: Fsync::Never, ..file });
    assert_eq!(weaknesses(unsynced).await, [Weakness::FileNotSynced, Weakness::FileOnOneDisk]);
    for nowhere in
        [Target::Null(null::NullConfig::default()), Target::Stdout(stdout::StdoutConfig::default())]
    {
        assert_eq!(weaknesses(nowhere).await, [Weakness::NotKept]);
    }
}

#[tokio::test]
async fn fault_91_redis_is_graded_by_what_it_says_of_itself() -> Result<()> {
    let server = Broker::private(Redis::durable()).await?;
    let target = || Target::Redis(RedisConfig::new(server.url()));
    assert_eq!(weaknesses(target()).await, [Weakness::RedisOneServer]);
    for (name, value, weakness) in [
        ("no-appendfsync-on-rewrite", "yes", Weakness::RedisSyncPauses),
        ("appendfsync", "everysec", Weakness::RedisEverySecond),
        ("appendfsync", "no", Weakness::RedisNotSynced),
        ("appendonly", "no", Weakness::RedisInMemory),
    ] {
        server.ask(["CONFIG", "SET", name, value]).await?;
        assert_eq!(weaknesses(target()).await, [weakness, Weakness::RedisOneServer], "{name} {value}");
    }
    server.ask(["ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-config"]).await?;
    let blind = Target::Redis(RedisConfig::new(format!("redis://blind:pw@{}", server.address())));
    assert_eq!(weaknesses(blind).await, [Weakness::RedisUnknown]);
    Ok(())
}

#[tokio::test]
async fn fault_93_redis_that_evicts_or_cuts_is_graded_down() -> Result<()> {
    let server = Broker::private(Redis::durable()).await?;
    let target = || Target::Redis(RedisConfig::new(server.url()));
    // A policy matters to a server that has a limit.
    server.ask(["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await?;
    assert_eq!(weaknesses(target()).await, [Weakness::RedisOneServer]);
    server.ask(["CONFIG", "SET", "maxmemory", "100mb"]).await?;
    assert_eq!(weaknesses(target()).await, [Weakness::RedisEvicts, Weakness::RedisOneServer]);
    server.ask(["CONFIG", "SET", "appendonly", "no"]).await?;
    let all = [Weakness::RedisInMemory, Weakness::RedisEvicts, Weakness::RedisOneServer];
    assert_eq!(weaknesses(target()).await, all);
    server.ask(["CONFIG", "SET", "appendonly", "yes"]).await?;
    server.ask(["CONFIG", "SET", "maxmemory", "0"]).await?;
    let cut = Target::Redis(RedisConfig { max_len: Some(7), ..RedisConfig::new(server.url()) });
    assert_eq!(weaknesses(cut).await, [Weakness::RedisCutsStreams, Weakness::RedisOneServer]);
    Ok(())
}

/// Where a stream of that name was just removed, the server may still be at its files.
async fn created(context: &jetstream::Context, config: stream::Config) -> Result<stream::Stream> {
    let begun = Instant::now();
    loop {
        match context.create_stream(config.clone()).await {
            Err(error) if error.to_string().contains("creating store") && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            made => return Ok(made?),
        }
    }
}

#[tokio::test]
async fn fault_89_a_nats_stream_is_graded_by_how_it_is_set_up() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig::new(server.url());
    let missing = Target::Nats(config.clone()).durability().await.err();
    assert_eq!(missing.map(|why| why.kind), Some(UnavailableKind::Missing));
    // As it would be made; and it is not made by being looked at.
    let wanted = NatsConfig { create: true, replicas: 3, ..config.clone() };
    assert_eq!(weaknesses(Target::Nats(wanted)).await, []);
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    assert!(context.get_stream("events").await.is_err());

    let plain = stream::Config {
        name: "events".to_owned(),
        subjects: vec!["events.>".to_owned()],
        max_age: std::time::Duration::from_hours(24),
        ..stream::Config::default()
    };
    let limited = stream::Config { max_messages: 1000, ..plain.clone() };
    let refusing = stream::Config { discard: stream::DiscardPolicy::New, ..limited.clone() };
    // The oldest of a subject goes, whatever is done when the stream is full.
    let by_subject = stream::Config { max_messages_per_subject: 1, ..refusing.clone() };
    let refusing_by_subject = stream::Config { discard_new_per_subject: true, ..by_subject.clone() };
    let interest = stream::Config { retention: stream::RetentionPolicy::Interest, ..plain.clone() };
    let in_memory = stream::Config { storage: stream::StorageType::Memory, ..plain.clone() };
    for (config_of_stream, expected) in [
        (plain, vec![Weakness::NatsOneServer]),
        (limited, vec![Weakness::NatsDiscardsOld, Weakness::NatsOneServer]),
        (refusing, vec![Weakness::NatsOneServer]),
        (by_subject, vec![Weakness::NatsDiscardsOld, Weakness::NatsOneServer]),
        (refusing_by_subject, vec![Weakness::NatsOneServer]),
        (in_memory, vec![Weakness::NatsInMemory, Weakness::NatsOneServer]),
        (interest.clone(), vec![Weakness::NatsNoConsumer, Weakness::NatsOneServer]),
    ] {
        created(&context, config_of_stream).await?;
        assert_eq!(weaknesses(Target::Nats(config.clone())).await, expected);
        context.delete_stream("events").await?;
    }
    // Somebody to keep them for.
    let stream = created(&context, interest).await?;
    let reader = jetstream::consumer::pull::Config {
        durable_name: Some("reader".to_owned()),
        ..jetstream::consumer::pull::Config::default()
    };
    stream.create_consumer(reader).await?;
    assert_eq!(weaknesses(Target::Nats(config)).await, [Weakness::NatsOneServer]);
    Ok(())
}

/// A stream with `retention: interest` confirms what none of its consumers asks for, and does not keep it.
#[tokio::test]
async fn fault_89_a_nats_stream_for_consumers_is_graded_by_what_they_ask_for() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig::new(server.url());
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let (none, other) = (Some(Weakness::NatsNoConsumer), Some(Weakness::NatsNotAskedFor));
    for (settings, subjects, worse) in [
        (json!({ "durable_name": "c" }), "events.>", None),
        (json!({ "durable_name": "c", "filter_subject": ">" }), "events.>", None),
        (json!({ "durable_name": "c", "filter_subject": "events.>" }), "events.>", None),
        (json!({ "durable_name": "c", "filter_subject": "events.audit" }), "events.>", other),
        (json!({ "durable_name": "c", "filter_subject": "events.*" }), "events.>", other),
        (json!({ "durable_name": "c", "filter_subject": "events.>" }), "events.> orders", other),
        (json!({ "durable_name": "c", "filter_subjects": ["events.a", "events.b"] }), "events.>", other),
        (json!({ "durable_name": "c", "filter_subjects": ["orders", "events.>"] }), "events.> orders", None),
        // They go when nobody reads.
        (json!({ "inactive_threshold": 600_000_000_000_i64 }), "events.>", none),
        (json!({ "durable_name": "c", "inactive_threshold": 600_000_000_000_i64 }), "events.>", none),
    ] {
        let wanted = stream::Config {
            name: "events".to_owned(),
            subjects: subjects.split(' ').map(str::to_owned).collect(),
            retention: stream::RetentionPolicy::Interest,
            ..stream::Config::default()
        };
        created(&context, wanted).await?;
        // Not by the library, which knows `filter_subjects` with another feature only.
        let is_durable = settings["durable_name"].is_string();
        let order = if is_durable { "CONSUMER.DURABLE.CREATE.events.c" } else { "CONSUMER.CREATE.events" };
        let mut consumer = settings.clone();
        consumer["ack_policy"] = json!("explicit");
        let asked = json!({ "stream_name": "events", "config": consumer });
        let made: Value = context.request(order, &asked).await?;
        assert!(made["error"].is_null(), "{settings}: {made}");
        let expected: Vec<Weakness> = worse.into_iter().chain([Weakness::NatsOneServer]).collect();
        assert_eq!(weaknesses(Target::Nats(config.clone())).await, expected, "{settings} {subjects}");
        context.delete_stream("events").await?;
    }
    Ok(())
}

/// Each finding is made at a real server, and the grade read.
#[tokio::test]
async fn fault_72_rabbitmq_is_graded_by_its_queues() -> Result<()> {
    use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
    use lapin::types::{AMQPValue, FieldTable};

    let server = Broker::shared(RabbitMq::new().with_management()).await?;
    let config = RabbitMqConfig {
        exchange: "graded".to_owned(),
        management: server.management(),
        ..RabbitMqConfig::new(server.url())
    };
    let graded = || weaknesses(Target::RabbitMq(config.clone()));
    let unasked = Target::RabbitMq(RabbitMqConfig { management: None, ..config.clone() });
    assert_eq!(weaknesses(unasked).await, [Weakness::RabbitMqUnknown]);
    assert_eq!(graded().await, [Weakness::RabbitMqNoQueue]);

    let connection =
        lapin::Connection::connect(&server.url(), lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    // A dead-letter exchange counts if it leads to a queue.
    let (declare, none) =
        (ExchangeDeclareOptions { durable: true, ..Default::default() }, FieldTable::default());
    channel.exchange_declare("dead".into(), lapin::ExchangeKind::Fanout, declare, none).await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("graded-dead".into(), durable, FieldTable::default()).await?;
    let (bind, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind("graded-dead".into(), "dead".into(), "".into(), bind, none).await?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let number = AMQPValue::LongInt;
    let quorum = ("x-queue-type", text("quorum"));
    let stream = ("x-queue-type", text("stream"));
    let dead = ("x-dead-letter-exchange", text("dead"));
    let one = Weakness::RabbitMqOneNode;
    for (options, arguments, expected) in [
        (durable, vec![quorum.clone()], vec![Weakness::RabbitMqOneMember]),
        (durable, vec![], vec![one]),
        (QueueDeclareOptions::default(), vec![], vec![Weakness::RabbitMqTransient, one]),
        (
            QueueDeclareOptions { auto_delete: true, ..durable },
            vec![],
            vec![Weakness::RabbitMqQueueGoes, one],
        ),
        (QueueDeclareOptions { exclusive: true, ..durable }, vec![], vec![Weakness::RabbitMqExclusive, one]),
        (durable, vec![("x-expires", number(600_000))], vec![Weakness::RabbitMqQueueGoes, one]),
        (durable, vec![("x-max-length", number(9))], vec![Weakness::RabbitMqDropsHead, one]),
        (durable, vec![("x-max-length-bytes", number(9)), dead.clone()], vec![one]),
        (durable, vec![("x-max-length", number(9)), ("x-overflow", text("reject-publish"))], vec![one]),
        (durable, vec![("x-max-length", number(9)), ("x-overflow", text("reject-publish-dlx"))], vec![one]),
        (durable, vec![("x-message-ttl", number(9))], vec![Weakness::RabbitMqMessagesExpire, one]),
        (durable, vec![("x-message-ttl", number(9)), dead.clone()], vec![one]),
        (
            durable,
            vec![quorum.clone(), ("x-max-length", number(9))],
            vec![Weakness::RabbitMqDropsHead, Weakness::RabbitMqOneMember],
        ),
        (
            durable,
            vec![quorum.clone(), ("x-max-length", number(9)), ("x-overflow", text("reject-publish"))],
            vec![Weakness::RabbitMqOneMember],
        ),
        // It takes this one, and does not know it.
        (
            durable,
            vec![quorum.clone(), ("x-max-length", number(9)), ("x-overflow", text("reject-publish-dlx"))],
            vec![Weakness::RabbitMqDropsHead, Weakness::RabbitMqOneMember],
        ),
        // How long a stream keeps what it has is what it is for; how much is not.
        (durable, vec![stream.clone(), ("x-max-age", text("7D"))], vec![one]),
        (
            durable,
            vec![stream.clone(), ("x-max-length-bytes", number(1_000_000))],
            vec![Weakness::RabbitMqDropsHead, one],
        ),
    ] {
        let table: std::collections::BTreeMap<_, _> =
            arguments.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        channel.queue_declare("graded".into(), options, FieldTable::from(table)).await?;
        let (bind, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind("graded".into(), "graded".into(), "".into(), bind, none).await?;
        // The management hears of it a moment later.
        let begun = Instant::now();
        while graded().await != expected {
            assert!(begun.elapsed() < PATIENCE, "{options:?} {arguments:?}: {:?}", graded().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        channel.queue_delete("graded".into(), QueueDeleteOptions::default()).await?;
    }
    // A policy counts as much as what the queue was declared with.
    channel.queue_declare("graded".into(), durable, FieldTable::default()).await?;
    let (bind, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind("graded".into(), "graded".into(), "".into(), bind, none).await?;
    server.control(["set_policy", "graded", "^graded$", r#"{"max-length":9}"#]).await?;
    // The management hears of it a few seconds later.
    let begun = Instant::now();
    while graded().await != [Weakness::RabbitMqDropsHead, one] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", graded().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.control(["clear_policy", "graded"]).await?;
    connection.close(200, "OK".into()).await?;
    Ok(())
}

/// Acks are always `all`: what is graded is what the brokers make of that.
#[tokio::test]
async fn fault_85_kafka_topics_are_graded_by_how_they_are_set_up() -> Result<()> {
    let server = Broker::private(Kafka::new()).await?;
    let brokers = server.bootstrap();
    let config = KafkaConfig::new(format!("kafka://{brokers}"));
    assert_eq!(
        weaknesses(Target::Kafka(config.clone())).await,
        [Weakness::KafkaUnknown],
        "there is no topic"
    );
    let missing = KafkaConfig { topics: vec!["order".to_owned()], ..config.clone() };
    let missing = Target::Kafka(missing).durability().await.err();
    assert_eq!(missing.map(|why| why.kind), Some(UnavailableKind::Missing));

    // As it would be made; and it is not made by being looked at.
    let wanted = |replication| {
        let create_topics = Some(CreateTopics { partitions: 1, replication });
        Target::Kafka(KafkaConfig { create_topics, topics: vec!["order".to_owned()], ..config.clone() })
    };
    assert_eq!(weaknesses(wanted(1)).await, [Weakness::KafkaOneReplica]);
    assert_eq!(weaknesses(wanted(3)).await, [Weakness::KafkaOneInSync]);
    // A broker alone cannot be told otherwise while it runs.
    let strict = Broker::private(Kafka::new().set("min.insync.replicas", 2)).await?;
    let made = KafkaConfig {
        create_topics: Some(CreateTopics { partitions: 1, replication: 3 }),
        ..KafkaConfig::new(format!("kafka://{}", strict.bootstrap()))
    };
    assert_eq!(weaknesses(Target::Kafka(made)).await, []);
    strict.stop().await?;

    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", &brokers).create()?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    for (topic, setting, expected) in [
        ("plain", ("min.insync.replicas", "1"), vec![Weakness::KafkaOneReplica]),
        (
            "unclean",
            ("unclean.leader.election.enable", "true"),
            vec![Weakness::KafkaOneReplica, Weakness::KafkaUncleanElection],
        ),
        ("limited", ("retention.bytes", "1000000"), vec![Weakness::KafkaLimited, Weakness::KafkaOneReplica]),
        (
            "compacted",
            ("cleanup.policy", "compact"),
            vec![Weakness::KafkaCompacts, Weakness::KafkaOneReplica],
        ),
    ] {
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(1)).set(setting.0, setting.1);
        for made in admin.create_topics([&new], &options).await? {
            made.map_err(|(topic, code)| anyhow::anyhow!("{topic}: {code}"))?;
        }
        let named = Target::Kafka(KafkaConfig { topics: vec![topic.to_owned()], ..config.clone() });
        // The controller has it; the broker hears of it a moment later.
        let begun = Instant::now();
        while named.durability().await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "{topic} is never there");
        }
        assert_eq!(weaknesses(named).await, expected, "{topic}");
    }
    // Without names, all of them.
    let all = weaknesses(Target::Kafka(config)).await;
    assert_eq!(all.len(), 4, "{all:?}");
    Ok(())
}

/// Nothing is delivered to a sink that is not good enough, until it is.
#[tokio::test]
async fn a_sink_below_what_is_required_gets_nothing() -> Result<()> {
    let server = Broker::private(Redis::durable().set("appendfsync", "everysec")).await?;
    let database = database().await;
    let mut connection = database.connect().await?;
    let target = Target::Redis(RedisConfig::new(server.url()));
    let required = SinkSettings { require_durability: Some(Grade::B), ..sink("redis", target) };
    let relay = postrider_relay::Relay::start(settings(&database, vec![required]))?;
    emit(&mut connection, "order.paid", Some("7")).await;
    let begun = std::time::Instant::now();
    loop {
        if let State::Waiting { kind: UnavailableKind::Weak, reason, .. } = &relay.status()[0].state {
            assert!(reason.contains("is C") && reason.contains("appendfsync always"), "{reason}");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(server.ask(["EXISTS", "events:order"]).await?, 0);
    server.ask(["CONFIG", "SET", "appendfsync", "always"]).await?;
    while server.ask(["EXISTS", "events:order"]).await? != 1 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    relay.stop().await;
    Ok(())
}

/// The page as the table makes it.
fn page() -> String {
    let mut page = "# What a confirmation is worth

<!-- Made from the table in crates/postrider-relay/src/durability.rs by a test of the relay; POSTRIDER_BLESS=1 writes it anew. Do not edit. -->

An event counts as delivered when the sink's server has confirmed it. Whether it is still there when something breaks over there is the
server's affair, and depends on how it is set up. `postrider doctor --config postrider.yaml` asks each server and grades it:

| grade | an event that was confirmed |
|---|---|
"
    .to_owned();
    for grade in Grade::ALL {
        let _ = writeln!(page, "| {grade} | {} |", grade.means());
    }
    page.push_str(
        "
`require_durability: B` in a sink makes that a condition: below it `postrider run` does not start (exit status 78), a reload is refused, and
to a server that is reached later only nothing is delivered; `postrider status` says `weak`, and why.

A sink is as good as the worst that is found:

| sink | found | at best | what makes it better |
|---|---|---|---|
",
    );
    for weakness in Weakness::ALL {
        let row = weakness.row();
        let _ = writeln!(page, "| {} | {} | {} | {} |", row.sink, row.what, row.grade, row.remedy);
    }
    page.push_str(
        "
Not graded: a quorum queue of RabbitMQ 4 has a delivery limit, 20 unless it is set. A message that readers, whoever they are, have put back more
often than that is dropped if the queue has no dead-letter exchange.
",
    );
    page
}

#[test]
fn the_docs_have_the_table_that_is_applied() {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sinks/durability.md");
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page(), "run with POSTRIDER_BLESS=1");
}
