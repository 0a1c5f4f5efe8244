//! What a broker will not have, and how much at once.

use anyhow::Result;
use postrider::log::Record;
use postrider_relay::sinks::kafka::{CreateTopics, KafkaConfig, KafkaSink};
use postrider_relay::{EventId, Message, Outcome, RefusalKind, Sink as _};
use postrider_testkit::{Broker, Kafka};

use super::super::{deliver, deliver_to, delivered, event};
use super::{config, firsts, ids, large, make, stored};

fn refused(outcome: &Outcome) -> Option<RefusalKind> {
    match outcome {
        Outcome::Refused(refusal) => Some(refusal.kind),
        _ => None,
    }
}

/// A topic that takes less than the client puts into one set: only what is itself too large is refused.
#[tokio::test]
async fn fault_81_kafka_refuses_what_is_too_large_and_nothing_else() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "too-large", 1, &[("max.message.bytes", "10000")]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let mut records: Vec<Record> = (0..30).map(|at| large(["a", "b"][at % 2], 1000)).collect();
    records[10] = large("a", 20_000);
    let report = deliver(&mut sink, &records, "too-large").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for (at, outcome) in report.outcomes.iter().enumerate() {
        match (at, at % 2) {
            (10, _) => assert_eq!(refused(outcome), Some(RefusalKind::TooLarge), "{outcome:?}"),
            (11.., 0) => assert_eq!(*outcome, Outcome::NotSent, "{at} is behind it"),
            _ => assert_eq!(*outcome, Outcome::Delivered, "{at}"),
        }
    }
    // It has learned: sets are small from now on.
    let more: Vec<Record> = (0..30).map(|at| large(["a", "b"][at % 2], 1000)).collect();
    delivered(&mut sink, &more, "too-large").await;
    let there = stored(&brokers, "too-large").await?;
    let first = records.iter().zip(&report.outcomes).filter(|(_, outcome)| **outcome == Outcome::Delivered);
    let expected: Vec<&Record> = first.map(|(record, _)| record).chain(&more).collect();
    for key in ["a", "b"] {
        assert_eq!(firsts(&there, key), ids(expected.iter().copied(), key));
    }
    Ok(())
}

/// A topic that is compacted takes nothing without a key. The broker says which ones it means; what was in a set with them is not refused.
#[tokio::test]
async fn fault_81_a_compacted_kafka_topic_refuses_events_without_a_key_and_nothing_else() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "compacted", 1, &[("cleanup.policy", "compact")]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let first = event("a");
    delivered(&mut sink, std::slice::from_ref(&first), "compacted").await;
    let keyless = || Record { key: None, ..event("a") };
    let records = [event("a"), keyless(), event("b"), keyless(), event("a")];
    let report = deliver(&mut sink, &records, "compacted").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for (record, outcome) in records.iter().zip(&report.outcomes) {
        match &record.key {
            Some(key) => assert_eq!(*outcome, Outcome::Delivered, "{key}"),
            None => assert_eq!(refused(outcome), Some(RefusalKind::Rejected), "{outcome:?}"),
        }
    }
    let there = stored(&brokers, "compacted").await?;
    for key in ["a", "b"] {
        assert_eq!(firsts(&there, key), ids([&first].into_iter().chain(&records), key));
    }
    assert_eq!(there.len(), 4, "{there:?}");
    Ok(())
}

/// The first that a partition gets of a producer is too large, and fills a set by itself. A broker that knows nothing of the producer would
/// take the next set, which is on its way too.
#[tokio::test]
async fn fault_81_what_is_too_large_for_kafka_at_the_beginning_is_passed_by_nothing_of_its_key() -> Result<()>
{
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    for (topic, is_second) in [("first-producer", false), ("second-producer", true)] {
        make(&brokers, topic, 1, &[("max.message.bytes", "10000")]).await?;
        let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
        let before = if is_second { vec![event("a"), event("b")] } else { Vec::new() };
        delivered(&mut sink, &before, topic).await;
        if is_second {
            // It ends the producer that the partition knows.
            let report = deliver(&mut sink, &[large("c", 20_000)], topic).await;
            assert_eq!(refused(&report.outcomes[0]), Some(RefusalKind::TooLarge), "{report:?}");
        }
        let mut records: Vec<Record> = (0..10).map(|at| event(["a", "b"][at % 2])).collect();
        records[0] = large("a", 999_000);
        let report = deliver(&mut sink, &records, topic).await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        assert_eq!(refused(&report.outcomes[0]), Some(RefusalKind::TooLarge), "{report:?}");
        let there = stored(&brokers, topic).await?;
        for (key, passed) in [("a", &[][..]), ("b", &records[1..])] {
            assert_eq!(firsts(&there, key), ids(before.iter().chain(passed), key), "{key} in {topic}");
        }
    }
    Ok(())
}

/// A key whose events go to two topics, one of which does not take the first: what follows is not sent past it, to the other one.
#[tokio::test]
async fn a_kafka_key_does_not_pass_its_refused_event_by_another_topic() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "small-one", 1, &[("max.message.bytes", "10000")]).await?;
    make(&brokers, "other-one", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    for topic in ["small-one", "other-one"] {
        delivered(&mut sink, &[event("a")], topic).await;
    }
    let [first, large, behind, elsewhere] = [event("a"), large("a", 20_000), event("a"), event("b")];
    let sent =
        [(&first, "small-one"), (&large, "small-one"), (&behind, "other-one"), (&elsewhere, "other-one")];
    let report = deliver_to(&mut sink, sent).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [one, refusal, two, three] = report.outcomes.as_slice() else { panic!("{report:?}") };
    assert_eq!(refused(refusal), Some(RefusalKind::TooLarge), "{report:?}");
    assert_eq!([one, two, three], [&Outcome::Delivered, &Outcome::NotSent, &Outcome::Delivered]);
    assert_eq!(firsts(&stored(&brokers, "other-one").await?, "a").len(), 1, "one from before");
    Ok(())
}

/// A topic that is forbidden, at first or later, concerns its own events.
#[tokio::test]
async fn fault_81_a_kafka_topic_that_is_forbidden_concerns_its_events_alone() -> Result<()> {
    let port = postrider_testkit::Proxy::start("127.0.0.1:1").await?;
    let service = Kafka::new()
        .set("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
        .set("super.users", "User:ANONYMOUS")
        .with_login("shop", "pw", port.port());
    let server = Broker::private(service).await?;
    port.set_upstream(server.login_address());
    let brokers = server.bootstrap();
    for topic in ["open", "closed"] {
        make(&brokers, topic, 1, &[]).await?;
    }
    server.allow("shop", "open").await?;
    let login = KafkaConfig {
        timeout: config(&brokers).timeout,
        ..KafkaConfig::new(format!("kafka://shop:pw@127.0.0.1:{}", port.port()))
    };
    let mut sink = KafkaSink::open(login).await.unwrap();
    let records = [event("a"), event("b")];
    let report = deliver(&mut sink, &records, "closed").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for outcome in &report.outcomes {
        // A topic that a user may not even see is not there for that user, or is forbidden, as the broker likes.
        assert!(
            matches!(refused(outcome), Some(RefusalKind::Rejected | RefusalKind::Unroutable)),
            "{outcome:?}"
        );
    }
    delivered(&mut sink, &records, "open").await;
    server.deny("shop", "open").await?;
    let later = [event("a"), event("a"), event("b")];
    let report = deliver(&mut sink, &later, "open").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    assert_eq!(refused(&report.outcomes[0]), Some(RefusalKind::Rejected), "{report:?}");
    assert_eq!(report.outcomes[1], Outcome::NotSent);
    assert_eq!(refused(&report.outcomes[2]), Some(RefusalKind::Rejected), "{report:?}");
    server.allow("shop", "closed").await?;
    delivered(&mut sink, &later, "closed").await;
    assert_eq!(stored(&brokers, "closed").await?.len(), 3);
    assert_eq!(stored(&brokers, "open").await?.len(), 2);
    Ok(())
}

/// A topic that cannot be made concerns its own events: to Kafka `.` and `_` are the same letter where it compares names, and there may be fewer
/// brokers than replicas are asked for.
#[tokio::test]
async fn fault_81_a_kafka_topic_that_cannot_be_made_concerns_its_events_alone() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    let making = |replication| KafkaConfig {
        create_topics: Some(CreateTopics { partitions: 1, replication }),
        ..config(&brokers)
    };
    let mut sink = KafkaSink::open(making(1)).await.unwrap();
    let [first, bad, behind, other, last] = [event("a"), event("b"), event("b"), event("c"), event("a")];
    let sent = [
        (&first, "collides.one"),
        (&bad, "collides_one"),
        (&behind, "collides.one"),
        (&other, "collides-not"),
        (&last, "collides.one"),
    ];
    // What is refused now is refused the next time, and the others have not waited for it.
    for _ in 0..2 {
        let report = deliver_to(&mut sink, sent).await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        let [one, Outcome::Refused(refusal), two, three, four] = report.outcomes.as_slice() else {
            panic!("{report:?}");
        };
        assert_eq!(refusal.kind, RefusalKind::Unroutable, "{refusal:?}");
        assert!(refusal.reason.contains("`collides_one` cannot be made"), "{}", refusal.reason);
        assert_eq!([one, three, four], [&Outcome::Delivered; 3]);
        assert_eq!(*two, Outcome::NotSent, "it is behind the one that was refused");
    }
    assert_eq!(firsts(&stored(&brokers, "collides.one").await?, "a"), [first.id, last.id]);
    assert_eq!(stored(&brokers, "collides-not").await?.len(), 2);

    let mut sink = KafkaSink::open(making(3)).await.unwrap();
    let report = deliver_to(&mut sink, [(&bad, "three-brokers"), (&first, "collides.one")]).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    assert_eq!(refused(&report.outcomes[0]), Some(RefusalKind::Rejected), "{report:?}");
    assert_eq!(report.outcomes[1], Outcome::Delivered);
    Ok(())
}

/// More than the client's queue holds: it is waited for room, and nothing is left out.
#[tokio::test]
async fn fault_82_a_full_queue_of_the_kafka_client_is_waited_for() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "full-queue", 2, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let keys = ["a", "b", "c"];
    let records: Vec<Record> = (0..25_000).map(|at| event(keys[at % 3])).collect();
    delivered(&mut sink, &records, "full-queue").await;
    let there = stored(&brokers, "full-queue").await?;
    assert_eq!(there.len(), records.len());
    for key in keys {
        let stored = there.iter().filter(|message| message.key == key).map(|message| message.id);
        assert!(stored.eq(ids(&records, key)), "{key} is in order");
    }
    Ok(())
}

/// A broker ends the connection of who sends more than it takes at once, without a word, and would do so each time: it is not sent.
#[tokio::test]
async fn fault_81_what_no_kafka_broker_takes_at_once_concerns_its_key_alone() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "gigantic", 1, &[("max.message.bytes", "200000000")]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let records = [large("a", 100 << 20), event("a"), event("b")];
    let report = deliver(&mut sink, &records, "gigantic").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [Outcome::Refused(refusal), Outcome::NotSent, Outcome::Delivered] = report.outcomes.as_slice() else {
        panic!("{:?}", report.outcomes);
    };
    assert_eq!(refusal.kind, RefusalKind::TooLarge);
    assert!(refusal.reason.contains("socket.request.max.bytes"), "{}", refusal.reason);
    Ok(())
}

/// Clients in C end the name of a header at a NUL: one that goes on behind it would be read as another.
#[tokio::test]
async fn an_event_of_kafka_has_no_header_that_passes_for_another() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "nul-headers", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let records = [event("a"), event("b"), event("b")];
    let batch: Vec<Message<'_>> = records
        .iter()
        .zip(["X-Origin", "event_id\0x", "X-Origin"])
        .map(|(record, name)| Message {
            record,
            id: EventId::of(record),
            destination: "nul-headers".to_owned(),
            content_type: "application/json",
            headers: vec![(name.to_owned(), "7".to_owned())],
            body: b"{}".to_vec(),
        })
        .collect();
    let report = sink.deliver(&batch).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [Outcome::Delivered, Outcome::Refused(refusal), Outcome::NotSent] = report.outcomes.as_slice() else {
        panic!("{:?}", report.outcomes);
    };
    assert_eq!(refusal.kind, RefusalKind::Rejected);
    assert!(refusal.reason.contains("NUL"), "{}", refusal.reason);
    let there = stored(&brokers, "nul-headers").await?;
    assert_eq!(there.iter().map(|message| message.id).collect::<Vec<_>>(), [records[0].id]);
    Ok(())
}
