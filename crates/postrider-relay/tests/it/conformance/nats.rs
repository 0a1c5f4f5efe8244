//! The sink `nats`, against NATS with `JetStream`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, stream};
use postrider_relay::durability::{Grade, Weakness};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::nats::{NatsConfig, NatsSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, RefusalKind, Sink, SinkSettings, Unavailable, UnavailableKind};
use postrider_testkit::conformance::{Control, Door, Subject, WRONG_PASSWORD, Way, examine};
use postrider_testkit::{Authority, Broker, Direction, Nats, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::{deliver, delivered, event, kills};
use crate::support::{PATIENCE, database, emit, sink, start};

const LARGEST: usize = 1 << 20;

struct Tested {
    server: Broker<Nats>,
    /// TLS is for a whole server, or not at all.
    over_tls: Broker<Nats>,
    right: Authority,
    wrong: Authority,
}

impl Tested {
    async fn new() -> Result<Self> {
        let (right, wrong) = (Authority::new()?, Authority::new()?);
        let server = Broker::private(
            Nats::new()
                .set("authorization", r#"{ user: shop, password: "p@ss" }"#)
                .set("max_payload", LARGEST),
        )
        .await?;
        let over_tls = Broker::private(Nats::new().with_tls(&right.issue("IP:127.0.0.1", 10)?)).await?;
        Ok(Self { server, over_tls, right, wrong })
    }

    fn config(&self, way: &Way) -> NatsConfig {
        let port = way.port;
        let (url, ca) = match way.door {
            Door::Plain => (format!("nats://shop:p%40ss@127.0.0.1:{port}"), None),
            Door::WrongPassword => (format!("nats://shop:{WRONG_PASSWORD}@127.0.0.1:{port}"), None),
            Door::Tls => (format!("tls://127.0.0.1:{port}"), Some(self.right.certificate())),
            Door::WrongAuthority => (format!("tls://127.0.0.1:{port}"), Some(self.wrong.certificate())),
        };
        NatsConfig { ca, create: true, timeout: Span(way.patience), ..NatsConfig::new(url) }
    }
}

/// What the stream `events` has, by a client that knows nothing of the sink.
pub(super) async fn stored(url: &str) -> Result<Vec<Uuid>> {
    let context = jetstream::new(
        async_nats::ConnectOptions::new()
            .user_and_password("shop".into(), "p@ss".into())
            .connect(url)
            .await?,
    );
    let stream = context.get_stream("events").await?;
    let count = usize::try_from(stream.cached_info().state.messages)?;
    let config = pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let mut messages = consumer
            .fetch()
            // The client drops what comes faster than it is read, and has room for 65,536.
            .max_messages((count - ids.len()).min(10_000))
            .expires(Duration::from_secs(5))
            .messages()
            .await?;
        while let Some(message) = futures_util::StreamExt::next(&mut messages).await {
            let message = message.map_err(anyhow::Error::from_boxed)?;
            let headers = message.headers.as_ref().context("a message without headers")?;
            ids.push(headers.get("event_id").context("a message without an id")?.as_str().parse()?);
        }
    }
    Ok(ids)
}

impl Subject for Tested {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink: Box<dyn Sink> = Box::new(NatsSink::open(self.config(way), "bus").await?);
            Ok(sink)
        })
    }

    fn upstream(&self, door: Door) -> Option<String> {
        match door {
            Door::Plain | Door::WrongPassword => Some(self.server.address()),
            Door::Tls | Door::WrongAuthority => Some(self.over_tls.address()),
        }
    }

    fn destination(&self) -> String {
        "events.conformance.tested".to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async { stored(&self.server.url()).await })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(what.done_to(&self.server))
    }

    fn oversize(&self) -> usize {
        LARGEST + 1
    }

    fn unroutable(&self) -> String {
        "elsewhere.tested".to_owned()
    }

    /// By `Nats-Msg-Id`, for two minutes.
    fn never_repeats(&self) -> bool {
        true
    }

    fn kills(&self) -> usize {
        kills(10)
    }
}

#[tokio::test]
async fn nats_keeps_the_contract() -> Result<()> {
    examine(&Tested::new().await?).await.assert_passed();
    Ok(())
}

/// No stream: nothing is published, not even to those who listen without one.
#[tokio::test]
async fn fault_86_nats_without_a_stream_gets_nothing() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let client = async_nats::connect(server.url()).await?;
    let mut overheard = client.subscribe("events.>").await?;
    client.flush().await?;
    let config = NatsConfig::new(server.url());
    let why = NatsSink::open(config.clone(), "bus").await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Missing);
    assert!(why.source.to_string().contains("no stream `events`"), "{}", why.source);

    // One that is there, and takes other subjects.
    let context = jetstream::new(client.clone());
    let subjects = vec!["events.other".to_owned()];
    let mut made = stream::Config { name: "events".to_owned(), subjects, ..stream::Config::default() };
    context.create_stream(made.clone()).await?;
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    let records = [event("a"), event("b")];
    let report = deliver(&mut sink, &records, "events.order.paid").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for outcome in &report.outcomes {
        assert!(
            matches!(outcome, Outcome::Refused(refusal) if refusal.kind == RefusalKind::Unroutable),
            "{outcome:?}"
        );
    }
    // Whoever mends it need not start anything again.
    made.subjects.push("events.order.>".to_owned());
    context.update_stream(made).await?;
    delivered(&mut sink, &records, "events.order.paid").await;
    let first = futures_util::StreamExt::next(&mut overheard).await.context("nothing was published")?;
    let id = first.headers.and_then(|headers| Some(headers.get("event_id")?.as_str().to_owned()));
    assert!(records.iter().any(|record| Some(record.id.to_string()) == id), "{id:?}");
    let other = futures_util::StreamExt::next(&mut overheard).await.context("one was published")?;
    assert_eq!(other.subject.as_str(), "events.order.paid");
    client.flush().await?;
    let more =
        tokio::time::timeout(Duration::from_millis(50), futures_util::StreamExt::next(&mut overheard)).await;
    assert!(more.is_err(), "the refused ones were published too");
    Ok(())
}

/// What was stored, and whose confirmation was lost, is known again.
#[tokio::test]
async fn fault_87_nats_knows_an_event_again_whose_confirmation_was_lost() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let proxy = Proxy::start(server.address()).await?;
    let config = NatsConfig {
        create: true,
        timeout: Span(Duration::from_millis(700)),
        ..NatsConfig::new(format!("nats://127.0.0.1:{}", proxy.port()))
    };
    let patient = NatsConfig { timeout: Span(Duration::from_secs(20)), ..config.clone() };
    let mut sink = NatsSink::open(patient, "bus").await.unwrap();
    delivered(&mut sink, &[event("a")], "events.order.paid").await;
    let mut sink = loop {
        // On a busy machine it may take more than one attempt.
        if let Ok(sink) = NatsSink::open(config.clone(), "bus").await {
            break sink;
        }
    };
    let records = [event("a"), event("b"), event("c")];
    proxy.drop_direction(Direction::ToClient);
    let report = deliver(&mut sink, &records, "events.order.paid").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
    proxy.heal();
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let count = async || anyhow::Ok(context.get_stream("events").await?.cached_info().state.messages);
    // They are there, or on their way there, and nobody was told.
    while count().await? < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    loop {
        let report = deliver(&mut sink, &records, "events.order.paid").await;
        if report.unavailable.is_none() {
            assert_eq!(report.outcomes, vec![Outcome::Delivered; 3]);
            break;
        }
    }
    assert_eq!(count().await?, 4, "none is there twice");
    Ok(())
}

/// A server that has more to do for a stream than it takes on says so of single events, and means none of them.
#[tokio::test]
async fn a_nats_server_with_too_much_to_do_is_waited_for() -> Result<()> {
    let server = Broker::private(Nats::new().set_for_streams("max_buffered_msgs", 1)).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    let mut has_waited = false;
    let begun = Instant::now();
    while !has_waited {
        assert!(begun.elapsed() < PATIENCE, "the server took on whatever came");
        let mut left: Vec<_> = (0..500).map(|n| event(&format!("key {n}"))).collect();
        while !left.is_empty() {
            let report = deliver(&mut sink, &left, "events.order.paid").await;
            let is_refused = report.outcomes.iter().find(|outcome| matches!(outcome, Outcome::Refused(_)));
            assert_eq!(is_refused, None, "for nothing that is wrong with it");
            has_waited |= report.unavailable.is_some_and(|why| why.kind == UnavailableKind::Blocked);
            let mut outcomes = report.outcomes.into_iter();
            left.retain(|_| outcomes.next() != Some(Outcome::Delivered));
        }
    }
    Ok(())
}

/// Whoever had nothing to send when the server was started anew sends the next event at once.
#[tokio::test]
async fn a_nats_server_that_was_started_anew_meanwhile_costs_no_attempt() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    delivered(&mut sink, &[event("a")], "events.order.paid").await;
    server.crash().await?;
    server.start().await?;
    delivered(&mut sink, &[event("a")], "events.order.paid").await;
    Ok(())
}

/// Several sinks may fill one stream, each by a route of its own, and the stream takes no event of one for an event of another. What one of them
/// sends again it still knows again.
#[tokio::test]
async fn two_nats_sinks_fill_one_stream() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut by_type = NatsSink::open(config.clone(), "by-type").await.unwrap();
    let mut by_tenant = NatsSink::open(config, "by-tenant").await.unwrap();
    let records = [event("a"), event("b")];
    for _ in 0..2 {
        delivered(&mut by_type, &records, "events.order.paid").await;
        delivered(&mut by_tenant, &records, "events.tenant.acme").await;
    }
    let mut found = stored(&server.url()).await?;
    found.sort();
    let mut expected = [records[0].id, records[0].id, records[1].id, records[1].id];
    expected.sort();
    assert_eq!(found, expected);
    Ok(())
}

/// The same through a relay, which tells each sink its name.
#[tokio::test]
async fn a_relay_fills_one_nats_stream_by_two_routes() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let database = database().await;
    let mut connection = database.connect().await?;
    let target = || Target::Nats(NatsConfig { create: true, ..NatsConfig::new(server.url()) });
    let route = Some("events.of.{key}".to_owned());
    let by_key = SinkSettings { route, ..sink("by-key", target()) };
    let relay = start(&database, vec![sink("by-type", target()), by_key]);
    emit(&mut connection, "order.paid", Some("7")).await;
    let begun = Instant::now();
    let mut found = Vec::new();
    while found.len() < 2 {
        assert!(begun.elapsed() < PATIENCE, "{found:?} {:?}", relay.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
        // There may be no stream yet.
        found = stored(&server.url()).await.unwrap_or_default();
    }
    assert_eq!(found[0], found[1]);
    relay.stop().await;
    Ok(())
}

/// Rows of two adopted tables, or of one that was emptied and began to count anew: they share an id, and are two events.
#[tokio::test]
async fn nats_keeps_two_events_that_share_the_id_of_their_tables() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    let mut records = [event("a"), event("b")];
    for record in &mut records {
        record.source_id = Some("7".to_owned());
    }
    for _ in 0..2 {
        delivered(&mut sink, &records, "events.order.paid").await;
    }
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let stream = context.get_stream("events").await?;
    assert_eq!(stream.cached_info().state.messages, 2);
    let mut known_by = Vec::new();
    for at in 1..=2 {
        let headers = stream.get_raw_message(at).await?.headers;
        let header = |name: &str| headers.get(name).map(ToString::to_string);
        assert_eq!(header("event_id").as_deref(), Some("7"), "the id that consumers know");
        known_by.extend(header("Nats-Msg-Id"));
    }
    known_by.sort();
    let mut expected = records.map(|record| format!("{}.bus", record.id));
    expected.sort();
    assert_eq!(known_by, expected);
    Ok(())
}

/// A subject that is forbidden concerns its own events, and nobody waits for an answer that does not come.
#[tokio::test]
async fn a_nats_subject_that_is_forbidden_concerns_its_events_alone() -> Result<()> {
    let denied = r#"[ "events.secret", "events.hidden.>" ]"#;
    let user = format!("{{ user: shop, password: pw, permissions: {{ publish: {{ deny: {denied} }} }} }}");
    let server =
        Broker::private(Nats::new().set("authorization", format!("{{ users: [ {user} ] }}"))).await?;
    let config = NatsConfig {
        create: true,
        timeout: Span(Duration::from_mins(1)),
        ..NatsConfig::new(format!("nats://shop:pw@{}", server.address()))
    };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    // Twice: what was said of the first does not count for the second.
    for _ in 0..2 {
        let report = deliver(&mut sink, &[event("a"), event("a"), event("b")], "events.secret").await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        let [Outcome::Refused(first), Outcome::NotSent, Outcome::Refused(_)] = report.outcomes.as_slice()
        else {
            panic!("{report:?}");
        };
        assert_eq!(first.kind, RefusalKind::Rejected);
        assert!(first.reason.contains("events.secret"), "{}", first.reason);
        delivered(&mut sink, &[event("a"), event("b")], "events.order.paid").await;
    }
    // The server quotes these when it speaks of them.
    for subject in [r"events.hidden.a\b", "events.hidden.a\"b", "events.hidden.a\u{200b}b"] {
        let report = deliver(&mut sink, &[event("a")], subject).await;
        assert!(report.unavailable.is_none(), "{subject:?}: {:?}", report.unavailable);
        let [Outcome::Refused(refusal)] = report.outcomes.as_slice() else { panic!("{report:?}") };
        assert_eq!(refusal.kind, RefusalKind::Rejected);
    }
    Ok(())
}

/// An event's own headers are for those who read it: none of them is an order to the server.
#[tokio::test]
async fn a_nats_event_gives_the_server_no_orders() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    let records = [event("a"), event("b"), event("c")];
    let headers = [("X-Origin", "web"), ("Nats-Rollup", "all"), ("nats-msg-id", "7")];
    let batch: Vec<_> = records
        .iter()
        .zip(headers)
        .map(|(record, (name, value))| postrider_relay::Message {
            record,
            id: postrider_relay::EventId::of(record),
            destination: "events.order.paid".to_owned(),
            content_type: "application/json",
            headers: vec![(name.to_owned(), value.to_owned())],
            body: b"{}".to_vec(),
        })
        .collect();
    let report = sink.deliver(&batch).await;
    let [Outcome::Delivered, Outcome::Refused(rollup), Outcome::Refused(id)] = report.outcomes.as_slice()
    else {
        panic!("{report:?}");
    };
    assert_eq!([rollup.kind, id.kind], [RefusalKind::Rejected; 2]);
    assert!(rollup.reason.contains("Nats-Rollup"), "{}", rollup.reason);
    Ok(())
}

/// A stream that never confirms is named at once, where one would wait for every event until the time is over.
#[tokio::test]
async fn a_nats_stream_that_confirms_nothing_is_named() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let silent = stream::Config {
        name: "events".to_owned(),
        subjects: vec!["events.>".to_owned()],
        no_ack: true,
        ..stream::Config::default()
    };
    context.create_stream(silent).await?;
    let why = NatsSink::open(NatsConfig::new(server.url()), "bus").await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Blocked);
    assert!(why.source.to_string().contains("no_ack"), "{}", why.source);
    Ok(())
}

/// A stream for its consumers alone confirms what none of them asks for, and has nothing of it: its grade says so.
#[tokio::test]
async fn fault_89_a_nats_stream_whose_consumer_asks_for_something_else_keeps_nothing() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let wanted = stream::Config {
        name: "events".to_owned(),
        subjects: vec!["events.>".to_owned()],
        retention: stream::RetentionPolicy::Interest,
        ..stream::Config::default()
    };
    let made = context.create_stream(wanted).await?;
    let reader = |name: &str, filter: &str| pull::Config {
        durable_name: Some(name.to_owned()),
        filter_subject: filter.to_owned(),
        ..pull::Config::default()
    };
    made.create_consumer(reader("auditor", "events.audit.>")).await?;
    let config = NatsConfig::new(server.url());
    let mut sink = NatsSink::open(config.clone(), "bus").await.unwrap();
    delivered(&mut sink, &[event("a"), event("b")], "events.order.paid").await;
    assert_eq!(context.get_stream("events").await?.cached_info().state.messages, 0);
    let target = Target::Nats(config);
    let graded = target.durability().await.unwrap().unwrap();
    assert_eq!(graded.weaknesses, [Weakness::NatsNotAskedFor, Weakness::NatsOneServer]);
    assert_eq!(graded.grade(), Grade::F);

    made.create_consumer(reader("reader", "")).await?;
    delivered(&mut sink, &[event("a"), event("b")], "events.order.paid").await;
    assert_eq!(context.get_stream("events").await?.cached_info().state.messages, 2);
    let graded = target.durability().await.unwrap().unwrap();
    assert_eq!(graded.weaknesses, [Weakness::NatsOneServer]);
    Ok(())
}

/// A stream that is sealed takes nothing, whatever comes: it is waited for, and no event is to blame.
#[tokio::test]
async fn a_nats_stream_that_is_sealed_is_waited_for() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let config = NatsConfig { create: true, ..NatsConfig::new(server.url()) };
    let mut sink = NatsSink::open(config, "bus").await.unwrap();
    delivered(&mut sink, &[event("a")], "events.order.paid").await;
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let made = context.get_stream("events").await?.cached_info().config.clone();
    context.update_stream(stream::Config { sealed: true, ..made }).await?;
    let report = deliver(&mut sink, &[event("a"), event("b")], "events.order.paid").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 2]);
    let why = report.unavailable.context("it was delivered")?;
    assert_eq!(why.kind, UnavailableKind::Blocked, "{}", why.source);
    Ok(())
}

/// An event that is larger than the whole stream may become is refused, and the others flow. The stream's own count of bytes says how large one
/// is: one that just fits is there, and whoever makes room need not start anything again.
#[tokio::test]
async fn an_event_that_is_larger_than_its_nats_stream_concerns_its_key_alone() -> Result<()> {
    let server = Broker::private(Nats::new()).await?;
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let large = || postrider::log::Record { payload: format!("\"{}\"", "x".repeat(50_000)), ..event("a") };
    // One that drops what is oldest would confirm it, and not have it.
    for (name, storage, discard) in [
        ("filed", stream::StorageType::File, stream::DiscardPolicy::New),
        ("kept", stream::StorageType::Memory, stream::DiscardPolicy::New),
        ("dropping", stream::StorageType::File, stream::DiscardPolicy::Old),
    ] {
        let made = stream::Config {
            name: name.to_owned(),
            subjects: vec![format!("{name}.>")],
            storage,
            discard,
            ..stream::Config::default()
        };
        let found = context.create_stream(made.clone()).await?;
        let config = NatsConfig { stream: name.to_owned(), ..NatsConfig::new(server.url()) };
        let subject = format!("{name}.order.paid");
        let mut sink = NatsSink::open(config.clone(), "bus").await.unwrap();
        delivered(&mut sink, &[large()], &subject).await;
        let size = i64::try_from(context.get_stream(name).await?.cached_info().state.bytes)?;
        found.purge().await?;

        context.update_stream(stream::Config { max_bytes: size - 1, ..made.clone() }).await?;
        let mut sink = NatsSink::open(config, "bus").await.unwrap();
        let records = [large(), event("a"), event("b")];
        let report = deliver(&mut sink, &records, &subject).await;
        assert!(report.unavailable.is_none(), "{name}: {:?}", report.unavailable);
        let [Outcome::Refused(refusal), Outcome::NotSent, Outcome::Delivered] = report.outcomes.as_slice()
        else {
            panic!("{name}: {report:?}");
        };
        assert_eq!(refusal.kind, RefusalKind::TooLarge);
        assert!(refusal.reason.contains("max_bytes"), "{}", refusal.reason);

        found.purge().await?;
        context.update_stream(stream::Config { max_bytes: size, ..made }).await?;
        delivered(&mut sink, &records[..1], &subject).await;
        assert_eq!(context.get_stream(name).await?.cached_info().state.messages, 1, "{name}");
    }
    Ok(())
}

/// A file of authorities that is not there, or has none, is named.
#[tokio::test]
async fn a_file_without_authorities_for_nats_is_named() -> Result<()> {
    let key = Authority::new()?.issue("IP:127.0.0.1", 10)?.key;
    for (file, words) in [("/nowhere/ca.pem".into(), "cannot read"), (key, "no certificate")] {
        let config = NatsConfig { ca: Some(file.clone()), ..NatsConfig::new("tls://127.0.0.1:1") };
        let why = NatsSink::open(config, "bus").await.err().context("it was opened")?;
        assert_eq!(why.kind, UnavailableKind::Missing, "{}", why.source);
        let said = why.source.to_string();
        assert!(said.contains(words) && said.contains(&*file.to_string_lossy()), "{said}");
    }
    Ok(())
}

/// TLS is spoken to a port that does not know it.
#[tokio::test]
async fn tls_to_a_port_of_nats_without_it_is_named() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let wrong = NatsConfig {
        ca: Some(Authority::new()?.certificate()),
        ..NatsConfig::new(format!("tls://{}", listener.local_addr()?))
    };
    // As NATS answers what is none of its protocol; and it stays, as otherwise the answer may be lost with the connection.
    let answer = async {
        let (mut socket, _) = listener.accept().await?;
        socket.write_all(b"INFO {\"server_id\":\"plain\",\"max_payload\":1048576}\r\n").await?;
        socket.read_exact(&mut [0; 16]).await?;
        socket.write_all(b"-ERR 'Unknown Protocol Operation'\r\n").await?;
        let _ = socket.read_to_end(&mut Vec::new()).await;
        anyhow::Ok(())
    };
    let (opened, answered) = tokio::join!(NatsSink::open(wrong, "bus"), answer);
    answered?;
    let why = opened.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Connection, "{}", why.source);
    assert!(why.source.to_string().contains("may not speak TLS"), "{}", why.source);
    Ok(())
}
