//! A relay that stands still with messages on their way to RabbitMQ. Nothing takes bytes back that a connection has: they arrive behind
//! what another relay has sent meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use postrider_testkit::{Broker, Direction, Proxy, RabbitMq, Signal};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::frozen::never_back;
use super::process::{EXCHANGE, Order, RelayProcess};
use super::soak;
use super::world::{LEASE, MAX_IN_FLIGHT, World};
use crate::conformance::rabbitmq::client::{Client, QUORUM};
use crate::support::PATIENCE;

const QUEUE: &str = "frozen relays";

/// Tells the collector what comes out of the queue, in the queue's order.
async fn tell(world: Arc<World>, url: String) {
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut queue = channel.basic_consume(QUEUE.into(), "teller".into(), options, none).await.unwrap();
    let (mut confirmations, mut collector) =
        TcpStream::connect(world.collector.address()).await.unwrap().into_split();
    collector.write_all(b"relay 0\n").await.unwrap();
    tokio::spawn(async move { tokio::io::copy(&mut confirmations, &mut tokio::io::sink()).await });
    while let Some(message) = queue.next().await {
        let message = message.unwrap();
        let event: Value = serde_json::from_slice(&message.data).unwrap();
        let id = event["id"].as_str().unwrap();
        let key = event["subject"].as_str().unwrap();
        let line = format!("{id} {key} {}\n", event["data"]["n"]);
        collector.write_all(line.as_bytes()).await.unwrap();
        message.ack(BasicAckOptions::default()).await.unwrap();
    }
}

/// Waits until this is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let looked = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, looked).await.is_ok(), "never: {what}");
}

/// A relay with its own way to the server.
struct Rider {
    process: RelayProcess,
    way: Proxy,
}

impl Rider {
    async fn start(world: &World, server: &Broker<RabbitMq>) -> Self {
        let way = Proxy::start(server.address()).await.unwrap();
        let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", way.port());
        // A machine that stands still for a second takes no lanes from it. For much longer the server would not wait for a frozen one.
        let order = Order { rabbitmq: Some(url), lease: LEASE * 3, ..world.order() };
        let process = RelayProcess::start(&order);
        Self { process, way }
    }

    /// Waits until it has sent something more.
    async fn sends(&self) {
        let before = self.way.carried(Direction::ToServer);
        until("the relay sends", || self.way.carried(Direction::ToServer) > before + 1000).await;
    }
}

/// What comes late has come before: it is there once more, with the same id, and nothing is there that its key's earlier events are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_5_what_a_frozen_relay_has_on_its_way_to_rabbitmq_is_repeated_and_overtakes_nothing() {
    let world = World::new("frozen on the way to RabbitMQ").await;
    let mut connection = world.database.connect().await.unwrap();
    let server = Broker::shared(RabbitMq::new().with_management()).await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    client.exchange(EXCHANGE, lapin::ExchangeKind::Fanout).await.unwrap();
    client.queue(QUEUE, QUORUM).await.unwrap();
    client.bind(QUEUE, EXCHANGE, "").await.unwrap();
    let teller = tokio::spawn(tell(Arc::clone(&world), server.url()));
    let load = super::load::start(&world);
    let (mut one, mut other) = (Rider::start(&world, &server).await, Rider::start(&world, &server).await);
    let freezes = soak();
    for _ in 0..freezes {
        world.until_lanes(one.process.number, 8, &mut connection).await;
        one.sends().await;
        one.way.half_open();
        // What is written from here on finds the relay with something in its hands already, or puts it there.
        let before = world.ledger.committed();
        until("there is more to send", || world.ledger.committed() > before + 100).await;
        one.process.signal(Signal::STOP);
        world.until_lanes(other.process.number, 16, &mut connection).await;
        world.until_all_lanes_flow(&mut connection).await;
        // First what is in the sockets, then what is in the relay itself.
        one.way.heal();
        world.until_all_lanes_flow(&mut connection).await;
        one.process.signal(Signal::CONT);
        never_back(&mut connection).await;
        world.until_lanes(one.process.number, 8, &mut connection).await;
        (one, other) = (other, one);
    }
    let report = world.finish(load, vec![one.process, other.process]).await;
    teller.abort();
    client.close().await;
    println!("frozen on the way to RabbitMQ: {report}");
    assert!(report.is_faithful(), "{report}");
    assert!(report.duplicated.count > 0, "nothing was on its way: {report}");
    assert!(report.duplicated.count <= freezes * MAX_IN_FLIGHT as usize, "{report}");
}
