//! Headers that an event brings along.

use std::time::Duration;

use anyhow::Result;
use postrider::log::Record;
use postrider_relay::sinks::rabbitmq::{RabbitMqConfig, RabbitMqSink};
use postrider_relay::units::Span;
use postrider_relay::{EventId, Message, Outcome, RefusalKind, Sink as _};
use postrider_testkit::{Broker, RabbitMq};

use super::super::event;
use super::client::{CLASSIC, Client};
use super::faults::{config, listened, opened};
use super::routing::shared;

/// Each with one header.
fn with_headers<'a, N: Into<String>, V: Into<String>>(
    records: &'a [Record],
    headers: impl IntoIterator<Item = (N, V)>,
) -> Vec<Message<'a>> {
    let message = |(record, (name, value)): (&'a Record, (N, V))| Message {
        record,
        id: EventId::of(record),
        destination: "x".to_owned(),
        content_type: "application/json",
        headers: vec![(name.into(), value.into())],
        body: b"{}".to_vec(),
    };
    records.iter().zip(headers).map(message).collect()
}

/// An event's own headers are for those who read it. One that would be an order to the server is refused, as the server closes the channel
/// because of it and everything else would wait for ever.
#[tokio::test]
async fn a_rabbitmq_event_gives_the_server_no_orders() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "orders", CLASSIC).await?;
    let mut sink = RabbitMqSink::open(config(&server, "orders")).await.unwrap();
    let records = [event("a"), event("b"), event("b"), event("c"), event("d")];
    let headers =
        [("X-Origin", "web"), ("CC", "elsewhere"), ("cc", "web"), ("BCC", "elsewhere"), ("cc", "web")];
    let report = sink.deliver(&with_headers(&records, headers)).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [
        Outcome::Delivered,
        Outcome::Refused(one),
        Outcome::NotSent,
        Outcome::Refused(other),
        Outcome::Delivered,
    ] = report.outcomes.as_slice()
    else {
        panic!("{report:?}");
    };
    assert_eq!([one.kind, other.kind], [RefusalKind::Rejected; 2]);
    assert!(one.reason.contains("\"CC\""), "{}", one.reason);
    assert_eq!(client.drain("orders").await?.len(), 2);
    client.close().await;
    Ok(())
}

/// A server that wants small frames: headers that do not fit into one are refused, and everything else flows.
#[tokio::test]
async fn headers_that_do_not_fit_into_a_frame_of_rabbitmq_concern_their_event_alone() -> Result<()> {
    let server = Broker::private(RabbitMq::new().set("frame_max", 8192)).await?;
    let client = Client::connect(&server.url()).await?;
    listened(&client, "small", CLASSIC).await?;
    let config = RabbitMqConfig { timeout: Span(Duration::from_secs(20)), ..config(&server, "small") };
    let mut sink = opened(&config).await;
    let records = [event("a"), event("b"), event("c")];
    let headers = [10, 20_000, 5_000].map(|size| ("X-Origin", "x".repeat(size)));
    let report = sink.deliver(&with_headers(&records, headers)).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [Outcome::Delivered, Outcome::Refused(large), Outcome::Delivered] = report.outcomes.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(large.kind, RefusalKind::TooLarge);
    assert_eq!(client.drain("small").await?.len(), 2);
    client.close().await;
    Ok(())
}
