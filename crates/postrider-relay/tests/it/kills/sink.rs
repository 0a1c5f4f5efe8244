//! The sink of a relay process: each event a line to the collector, delivered when the collector has confirmed it.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use postrider_relay::sink::BoxFuture;
use postrider_relay::{Message, Outcome, Report, Sink, Unavailable, UnavailableKind};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::adopted::identified;
use super::process::Order;

/// Keeps the contract of a sink.
pub struct CollectorSink {
    number: u32,
    address: String,
    deadline: Duration,
    connection: Option<BufReader<TcpStream>>,
}

impl CollectorSink {
    pub fn new(order: &Order) -> Self {
        Self {
            number: order.number,
            address: order.collector.clone(),
            deadline: order.deadline,
            connection: None,
        }
    }

    async fn connect(&mut self) -> io::Result<BufReader<TcpStream>> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(format!("relay {}\n", self.number).as_bytes()).await?;
        Ok(BufReader::new(stream))
    }

    /// Sends all lines, then waits for their confirmations, which are taken out of `waiting` as they come.
    async fn exchange(&mut self, lines: &str, waiting: &mut HashSet<Uuid>) -> io::Result<()> {
        // Put back only when all is well: what is half done cannot be gone on with.
        let mut connection = self.connect().await?;
        connection.write_all(lines.as_bytes()).await?;
        let mut line = String::new();
        while !waiting.is_empty() {
            line.clear();
            if connection.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            waiting.remove(&line.trim().parse().map_err(io::Error::other)?);
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn send(&mut self, lines: &str, waiting: &mut HashSet<Uuid>) -> Option<Unavailable> {
        match tokio::time::timeout(self.deadline, self.exchange(lines, waiting)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Unavailable::new(UnavailableKind::Connection, error)),
            Err(late) => Some(Unavailable::new(UnavailableKind::Timeout, late)),
        }
    }
}

/// The line of an event: its payload is `{"n" : 17}`.
fn line(message: &Message<'_>) -> String {
    let payload: serde_json::Value = serde_json::from_str(&message.record.payload).unwrap();
    let (id, key) = identified(message);
    format!("{id} {key} {}\n", payload["n"])
}

impl Sink for CollectorSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let lines: String = batch.iter().map(line).collect();
            let mut waiting: HashSet<Uuid> = batch.iter().map(|message| identified(message).0).collect();
            let unavailable = self.send(&lines, &mut waiting).await;
            let outcome = |message: &Message<'_>| {
                if waiting.contains(&identified(message).0) { Outcome::NotSent } else { Outcome::Delivered }
            };
            Report { outcomes: batch.iter().map(outcome).collect(), unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

/// Breaks the contract: everything is "delivered" at once, and sent afterwards.
pub struct Eager {
    lines: mpsc::UnboundedSender<(Uuid, String)>,
    sending: JoinHandle<()>,
}

impl Eager {
    pub fn new(mut sink: CollectorSink) -> Self {
        let (lines, mut told) = mpsc::unbounded_channel::<(Uuid, String)>();
        let sending = tokio::spawn(async move {
            let mut batch = Vec::new();
            while told.recv_many(&mut batch, 500).await > 0 {
                let text: String = batch.iter().map(|(_, line)| line.as_str()).collect();
                let mut waiting = batch.drain(..).map(|(id, _)| id).collect();
                assert!(sink.send(&text, &mut waiting).await.is_none());
            }
        });
        Self { lines, sending }
    }
}

impl Sink for Eager {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            for message in batch {
                self.lines.send((identified(message).0, line(message))).unwrap();
            }
            Report::delivered(batch.len())
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        let Self { lines, sending } = *self;
        drop(lines);
        Box::pin(async move {
            sending.await.unwrap();
            Ok(())
        })
    }
}
