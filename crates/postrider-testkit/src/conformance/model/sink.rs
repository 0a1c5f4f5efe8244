//! One event after the other, each confirmed before the next.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use postrider_relay::sink::{
    BoxFuture, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable, UnavailableKind,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::server::{STORED, TOO_LARGE, UNROUTABLE};
use super::{Flaw, LARGEST};

pub(super) struct ModelSink {
    port: u16,
    patience: Duration,
    flaw: Flaw,
    stream: Option<TcpStream>,
    /// Whether a connection has been lost since the last batch.
    is_fresh: bool,
}

impl ModelSink {
    pub(super) fn new(port: u16, patience: Duration, flaw: Flaw) -> Self {
        Self { port, patience, flaw, stream: None, is_fresh: false }
    }

    /// One event, until the server has said what became of it.
    async fn send(&mut self, message: &Message<'_>) -> io::Result<u8> {
        if self.flaw == Flaw::DropsOversize && message.body.len() > LARGEST {
            return Ok(STORED);
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
                stream.set_nodelay(true)?;
                none.insert(stream)
            }
        };
        let mut frame = message.record.id.into_bytes().to_vec();
        frame.push(u8::try_from(message.destination.len()).map_err(io::Error::other)?);
        frame.extend(u32::try_from(message.body.len()).map_err(io::Error::other)?.to_be_bytes());
        frame.extend_from_slice(message.destination.as_bytes());
        frame.extend_from_slice(&message.body);
        stream.write_all(&frame).await?;
        if self.flaw == Flaw::AcksEarly {
            return Ok(STORED);
        }
        stream.read_u8().await
    }

    async fn outcome(&mut self, message: &Message<'_>) -> Result<Outcome, Unavailable> {
        let refused = |kind, reason: &str| Outcome::Refused(Refusal { kind, reason: reason.to_owned() });
        match tokio::time::timeout(self.patience, self.send(message)).await {
            Ok(Ok(STORED)) => Ok(Outcome::Delivered),
            Ok(Ok(TOO_LARGE)) => Ok(refused(RefusalKind::TooLarge, "the server says it is too large")),
            Ok(Ok(UNROUTABLE)) => {
                Ok(refused(RefusalKind::Unroutable, "the server says nobody listens there"))
            }
            Ok(Ok(other)) => {
                Err(Unavailable::new(UnavailableKind::Connection, format!("it answered {other}")))
            }
            Ok(Err(error)) => Err(Unavailable::new(UnavailableKind::Connection, error)),
            Err(elapsed) => Err(Unavailable::new(UnavailableKind::Timeout, elapsed)),
        }
    }
}

impl Sink for ModelSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut report = Report { outcomes: vec![Outcome::NotSent; batch.len()], unavailable: None };
            let mut places: Vec<usize> = (0..batch.len()).collect();
            let is_fresh = std::mem::take(&mut self.is_fresh);
            if is_fresh && self.flaw == Flaw::ReordersAfterReconnect {
                places.reverse();
            }
            let mut stopped: HashSet<&str> = HashSet::new();
            for at in places {
                let key = batch[at].record.key.as_deref();
                if key.is_some_and(|key| stopped.contains(key)) {
                    continue;
                }
                match self.outcome(&batch[at]).await {
                    Ok(outcome) => {
                        if outcome != Outcome::Delivered {
                            stopped.extend(key);
                        }
                        report.outcomes[at] = outcome;
                    }
                    Err(why) => {
                        // What is on its way on the old connection is never waited for: it comes again.
                        self.stream = None;
                        self.is_fresh = true;
                        report.unavailable = Some(why);
                        break;
                    }
                }
            }
            report
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}
