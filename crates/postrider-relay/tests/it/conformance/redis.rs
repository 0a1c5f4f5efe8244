//! The sink `redis`, against Redis and Valkey.

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::redis::{RedisConfig, RedisSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, RefusalKind, Sink, Unavailable, UnavailableKind};
use postrider_testkit::conformance::{Control, Door, Subject, Test, WRONG_PASSWORD, Way, examine};
use postrider_testkit::{Authority, Broker, Proxy, Redis};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{deliver, delivered, event, kills};

const PASSWORD: &str = "a right one";
const STREAM: &str = "events:conformance";
/// Less is not to be had.
const LARGEST: usize = 1 << 20;

struct Tested {
    server: Broker<Redis>,
    right: Authority,
    wrong: Authority,
    /// Why it speaks no TLS, if it does not.
    no_tls: Option<&'static str>,
}

impl Tested {
    async fn new(service: Redis, no_tls: Option<&'static str>) -> Result<Self> {
        let (right, wrong) = (Authority::new()?, Authority::new()?);
        let mut service =
            service.set("requirepass", format!("{PASSWORD:?}")).set("proto-max-bulk-len", LARGEST);
        if no_tls.is_none() {
            service = service.with_tls(&right.issue("IP:127.0.0.1", 10)?);
        }
        let server = Broker::private(service).await?;
        ask(&server, ["SET", "no-stream", "but a text"]).await?;
        Ok(Self { server, right, wrong, no_tls })
    }

    fn config(&self, way: &Way) -> RedisConfig {
        let scheme = if matches!(way.door, Door::Tls | Door::WrongAuthority) { "rediss" } else { "redis" };
        let password = if way.door == Door::WrongPassword { WRONG_PASSWORD } else { "a%20right%20one" };
        let ca = match way.door {
            Door::Tls => Some(self.right.certificate()),
            Door::WrongAuthority => Some(self.wrong.certificate()),
            _ => None,
        };
        let url = format!("{scheme}://:{password}@127.0.0.1:{}", way.port);
        RedisConfig { ca, timeout: Span(way.patience), ..RedisConfig::new(url) }
    }
}

/// By `redis-cli`, which is none of ours.
async fn ask<const N: usize>(server: &Broker<Redis>, words: [&str; N]) -> Result<Value> {
    server.ask(words).await
}

/// The ids of a stream.
pub(super) fn ids(entries: &Value) -> Result<Vec<Uuid>> {
    let entries = entries.as_array().context("no entries")?;
    // [["1-0", ["id", "…", "type", "…", …]], …]
    entries.iter().map(|entry| Ok(entry[1][1].as_str().context("an entry without an id")?.parse()?)).collect()
}

impl Subject for Tested {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink: Box<dyn Sink> = Box::new(RedisSink::open(self.config(way)).await?);
            Ok(sink)
        })
    }

    fn upstream(&self, door: Door) -> Option<String> {
        match door {
            Door::Plain | Door::WrongPassword => Some(self.server.address()),
            Door::Tls | Door::WrongAuthority => self.server.tls_address(),
        }
    }

    fn destination(&self) -> String {
        STREAM.to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async { ids(&ask(&self.server, ["XRANGE", STREAM, "-", "+"]).await?) })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(what.done_to(&self.server))
    }

    fn oversize(&self) -> usize {
        LARGEST + 1
    }

    fn unroutable(&self) -> String {
        "no-stream".to_owned()
    }

    fn kills(&self) -> usize {
        kills(10)
    }

    fn exempt(&self, test: Test) -> Option<&'static str> {
        self.no_tls.filter(|_| test == Test::BadTls)
    }
}

/// The kills of fault 91 are among it: with `appendfsync always` nothing is lost.
#[tokio::test]
async fn fault_91_redis_keeps_the_contract_through_kills() -> Result<()> {
    examine(&Tested::new(Redis::durable(), None).await?).await.assert_passed();
    Ok(())
}

#[tokio::test]
async fn fault_91_valkey_keeps_the_contract_through_kills() -> Result<()> {
    let no_tls = Some(
        "the Valkey of the tests was built without TLS; the sink's part of it is the same as with Redis",
    );
    examine(&Tested::new(Redis::durable().valkey(), no_tls).await?).await.assert_passed();
    Ok(())
}

/// The memory of the server is full: the sink waits, and goes on when there is room.
#[tokio::test]
async fn fault_92_redis_out_of_memory_is_waited_for() -> Result<()> {
    let server = Broker::private(Redis::new().set("maxmemory-policy", "noeviction")).await?;
    let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
    delivered(&mut sink, &[event("a")], "events").await;
    ask(&server, ["CONFIG", "SET", "maxmemory", "1"]).await?;
    let late = [event("a"), event("b"), event("a")];
    for _ in 0..2 {
        let report = deliver(&mut sink, &late, "events").await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
        let why = report.unavailable.unwrap();
        assert_eq!(why.kind, UnavailableKind::Full);
        assert!(why.source.to_string().contains("OOM command not allowed"), "{}", why.source);
    }
    ask(&server, ["CONFIG", "SET", "maxmemory", "0"]).await?;
    delivered(&mut sink, &late, "events").await;
    assert_eq!(ask(&server, ["XLEN", "events"]).await?, json!(4));
    Ok(())
}

/// What was on its way on a connection that was given up must not come behind what is newer: the connection is ended on the server first.
#[tokio::test]
async fn a_redis_connection_that_was_given_up_stores_nothing_late() -> Result<()> {
    let server = Broker::private(Redis::new()).await?;
    let proxy = Proxy::start(server.address()).await?;
    let config = RedisConfig {
        timeout: Span(Duration::from_secs(1)),
        ..RedisConfig::new(format!("redis://127.0.0.1:{}", proxy.port()))
    };
    let mut sink = loop {
        // On a busy machine it may take more than one attempt, here and below.
        if let Ok(sink) = RedisSink::open(config.clone()).await {
            break sink;
        }
    };
    let [first, late, newer] = [[event("a")], [event("a")], [event("a")]];
    until_delivered(&mut sink, &first).await;
    proxy.delay(Duration::from_secs(5));
    let report = deliver(&mut sink, &late, "events").await;
    assert_eq!(report.outcomes, [Outcome::NotSent]);
    proxy.heal();
    until_delivered(&mut sink, &late).await;
    until_delivered(&mut sink, &newer).await;
    // The proxy has handed over what it had of the old one, or found it closed.
    proxy.wait_for_connections(1).await;
    let mut stored = ids(&ask(&server, ["XRANGE", "events", "-", "+"]).await?)?;
    stored.dedup();
    assert_eq!(stored, [first[0].id, late[0].id, newer[0].id]);
    Ok(())
}

async fn until_delivered(sink: &mut RedisSink, records: &[postrider::log::Record]) {
    while deliver(sink, records, "events").await.outcomes[0] != Outcome::Delivered {}
}

#[tokio::test]
async fn a_redis_stream_is_cut_only_when_asked() -> Result<()> {
    let server = Broker::private(Redis::new().set("stream-node-max-entries", 10)).await?;
    let records: Vec<_> = (0..300).map(|_| event("a")).collect();
    let config = RedisConfig::new(server.url());
    let mut cutting = RedisSink::open(RedisConfig { max_len: Some(50), ..config.clone() }).await.unwrap();
    let mut keeping = RedisSink::open(config).await.unwrap();
    delivered(&mut cutting, &records, "cut").await;
    delivered(&mut keeping, &records, "kept").await;
    assert_eq!(ask(&server, ["XLEN", "kept"]).await?, json!(300));
    let left = ask(&server, ["XLEN", "cut"]).await?.as_u64().unwrap();
    assert!((50..100).contains(&left), "{left}");
    Ok(())
}

/// A key that goes to two streams, one of which is none: what follows is not sent past what was refused.
#[tokio::test]
async fn a_redis_key_does_not_pass_its_refused_event_by_another_stream() -> Result<()> {
    let server = Broker::private(Redis::new()).await?;
    ask(&server, ["SET", "text", "no stream"]).await?;
    let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
    let records = [event("a"), event("a"), event("b"), event("a")];
    let batch: Vec<_> = records
        .iter()
        .zip(["good", "text", "good", "good"])
        .map(|(record, destination)| postrider_relay::Message {
            record,
            id: postrider_relay::EventId::of(record),
            destination: destination.to_owned(),
            content_type: "application/json",
            headers: vec![("ce-id".to_owned(), "7".to_owned())],
            body: b"{}".to_vec(),
        })
        .collect();
    let report = sink.deliver(&batch).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [first, Outcome::Refused(refusal), other, last] = report.outcomes.as_slice() else {
        panic!("{:?}", report.outcomes);
    };
    assert_eq!(refusal.kind, RefusalKind::Unroutable);
    assert_eq!([first, other, last], [&Outcome::Delivered, &Outcome::Delivered, &Outcome::NotSent]);
    assert_eq!(ids(&ask(&server, ["XRANGE", "good", "-", "+"]).await?)?, [records[0].id, records[2].id]);
    let entry = ask(&server, ["XRANGE", "good", "-", "+", "COUNT", "1"]).await?;
    let id = records[0].id.to_string();
    let fields = json!([
        "id",
        id,
        "type",
        "order.paid",
        "key",
        "a",
        "content-type",
        "application/json",
        "ce-id",
        "7",
        "data",
        "{}"
    ]);
    assert_eq!(entry[0][1], fields);
    Ok(())
}

/// A user who may not write to one stream may still write to others.
#[tokio::test]
async fn a_redis_stream_that_is_forbidden_concerns_its_events_alone() -> Result<()> {
    let server = Broker::private(Redis::new()).await?;
    ask(
        &server,
        ["ACL", "SETUSER", "shop", "on", ">pw", "~mine", "+xadd", "+multi", "+exec", "+client", "+hello"],
    )
    .await?;
    let url = format!("redis://shop:pw@{}", server.address());
    let mut sink =
        RedisSink::open(RedisConfig { timeout: Span(Duration::from_secs(20)), ..RedisConfig::new(url) })
            .await
            .unwrap();
    let report = deliver(&mut sink, &[event("a"), event("b")], "theirs").await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    for outcome in &report.outcomes {
        assert!(
            matches!(outcome, Outcome::Refused(refusal) if refusal.kind == RefusalKind::Rejected),
            "{outcome:?}"
        );
    }
    delivered(&mut sink, &[event("a")], "mine").await;
    Ok(())
}

/// The server takes less at once than a batch has, or than an event has. It would end the connection, and so it would every time.
#[tokio::test]
async fn what_redis_does_not_take_at_once_is_sent_in_pieces_or_refused() -> Result<()> {
    for service in [Redis::new(), Redis::new().valkey()] {
        let server = Broker::private(service.set("client-query-buffer-limit", LARGEST)).await?;
        let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
        let mut records = ["a", "b", "a", "a", "b", "a", "a", "b"].map(event);
        for record in &mut records {
            record.payload = "x".repeat(LARGEST / 3);
        }
        delivered(&mut sink, &records, "events").await;
        let stored = ids(&ask(&server, ["XRANGE", "events", "-", "+"]).await?)?;
        assert_eq!(stored, records.each_ref().map(|record| record.id));

        let mut records = ["b", "a", "a", "b"].map(event);
        records[1].payload = "x".repeat(LARGEST);
        let report = deliver(&mut sink, &records, "events").await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        let [Outcome::Delivered, Outcome::Refused(refusal), Outcome::NotSent, Outcome::Delivered] =
            report.outcomes.as_slice()
        else {
            panic!("{:?}", report.outcomes);
        };
        assert_eq!(refusal.kind, RefusalKind::TooLarge);
        assert!(refusal.reason.contains("client-query-buffer-limit"), "{}", refusal.reason);
    }
    Ok(())
}

/// A header counts as much as a body.
#[tokio::test]
async fn an_event_whose_header_is_too_large_for_redis_is_refused() -> Result<()> {
    let server = Broker::private(Redis::new().set("proto-max-bulk-len", LARGEST)).await?;
    let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
    let records = [event("a"), event("b")];
    let batch: Vec<_> = records
        .iter()
        .zip([LARGEST + 1, 1])
        .map(|(record, size)| postrider_relay::Message {
            record,
            id: postrider_relay::EventId::of(record),
            destination: "events".to_owned(),
            content_type: "application/json",
            headers: vec![("big".to_owned(), "x".repeat(size))],
            body: b"{}".to_vec(),
        })
        .collect();
    let report = sink.deliver(&batch).await;
    let [Outcome::Refused(refusal), Outcome::Delivered] = report.outcomes.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(refusal.kind, RefusalKind::TooLarge);
    assert!(refusal.reason.contains("proto-max-bulk-len"), "{}", refusal.reason);
    Ok(())
}

/// A user who lacks a command is waited for, whatever the user is called: no event is to blame.
#[tokio::test]
async fn a_redis_user_who_may_not_add_is_waited_for() -> Result<()> {
    for service in [Redis::new(), Redis::new().valkey()] {
        let server = Broker::private(service).await?;
        ask(&server, ["ACL", "SETUSER", "monkey", "on", ">pw", "~*", "+multi", "+exec", "+client", "+hello"])
            .await?;
        let url = format!("redis://monkey:pw@{}", server.address());
        let mut sink = RedisSink::open(RedisConfig::new(url)).await.unwrap();
        let report = deliver(&mut sink, &[event("a"), event("b")], "events").await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; 2]);
        let why = report.unavailable.context("it was delivered")?;
        assert_eq!(why.kind, UnavailableKind::Forbidden, "{}", why.source);
    }
    Ok(())
}

/// A port that speaks no TLS says nothing at all to who does.
#[tokio::test]
async fn a_redis_that_speaks_no_tls_is_asked_whether_it_does() -> Result<()> {
    let server = Broker::private(Redis::new()).await?;
    let authority = Authority::new()?;
    let config = RedisConfig {
        ca: Some(authority.certificate()),
        timeout: Span(Duration::from_millis(500)),
        ..RedisConfig::new(format!("rediss://{}", server.address()))
    };
    let why = RedisSink::open(config).await.err().context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Timeout, "{}", why.source);
    assert!(why.source.to_string().contains("does it speak TLS"), "{}", why.source);
    Ok(())
}

/// A server that has become a replica takes nothing, and is waited for: whoever fails over moves the address, or makes it a primary again.
#[tokio::test]
async fn fault_95_redis_that_is_read_only_is_waited_for() -> Result<()> {
    let server = Broker::private(Redis::new()).await?;
    let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
    let (first, late) = ([event("a")], [event("a"), event("a")]);
    delivered(&mut sink, &first, "events").await;
    ask(&server, ["REPLICAOF", "127.0.0.1", "1"]).await?;
    let report = deliver(&mut sink, &late, "events").await;
    assert_eq!(report.outcomes, vec![Outcome::NotSent; 2]);
    let why = report.unavailable.unwrap();
    assert_eq!(why.kind, UnavailableKind::Blocked);
    assert!(why.source.to_string().contains("READONLY"), "{}", why.source);
    ask(&server, ["REPLICAOF", "NO", "ONE"]).await?;
    delivered(&mut sink, &late, "events").await;
    assert_eq!(ask(&server, ["XLEN", "events"]).await?, json!(3));
    Ok(())
}

/// What is larger than all the memory that the server may take would be waited for for ever: it is refused, and the others flow. Whoever raises
/// the limit need not start anything again.
#[tokio::test]
async fn an_event_that_is_larger_than_the_memory_of_redis_concerns_its_key_alone() -> Result<()> {
    for service in [Redis::new(), Redis::new().valkey()] {
        let server = Broker::private(service.set("maxmemory", "8mb")).await?;
        let mut sink = RedisSink::open(RedisConfig::new(server.url())).await.unwrap();
        let mut records = ["a", "a", "b"].map(event);
        records[0].payload = "x".repeat(9 << 20);
        let report = deliver(&mut sink, &records, "events").await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        let [Outcome::Refused(refusal), Outcome::NotSent, Outcome::Delivered] = report.outcomes.as_slice()
        else {
            panic!("{:?}", report.outcomes);
        };
        assert_eq!(refusal.kind, RefusalKind::TooLarge);
        assert!(refusal.reason.contains("maxmemory"), "{}", refusal.reason);
        ask(&server, ["CONFIG", "SET", "maxmemory", "200mb"]).await?;
        delivered(&mut sink, &records[..2], "events").await;
    }
    Ok(())
}

/// A file of authorities that is not there, or has none, is named.
#[tokio::test]
async fn a_file_without_authorities_for_redis_is_named() -> Result<()> {
    let key = Authority::new()?.issue("IP:127.0.0.1", 10)?.key;
    for (file, words) in [("/nowhere/ca.pem".into(), "cannot read"), (key, "no certificate")] {
        let config = RedisConfig { ca: Some(file.clone()), ..RedisConfig::new("rediss://127.0.0.1:1") };
        let why = RedisSink::open(config).await.err().context("it was opened")?;
        assert_eq!(why.kind, UnavailableKind::Missing, "{}", why.source);
        let said = why.source.to_string();
        assert!(said.contains(words) && said.contains(&*file.to_string_lossy()), "{said}");
    }
    Ok(())
}

/// A port that speaks TLS hangs up to who does not.
#[tokio::test]
async fn a_redis_that_speaks_tls_is_asked_whether_it_does() -> Result<()> {
    let certificate = Authority::new()?.issue("IP:127.0.0.1", 10)?;
    let server = Broker::private(Redis::new().with_tls(&certificate)).await?;
    let address = server.tls_address().context("it speaks no TLS")?;
    let why = RedisSink::open(RedisConfig::new(format!("redis://{address}"))).await.err();
    let why = why.context("it was opened")?;
    assert_eq!(why.kind, UnavailableKind::Connection, "{}", why.source);
    assert!(why.source.to_string().contains("may speak TLS"), "{}", why.source);
    Ok(())
}
