//! A relay inside a service of your own, with a sink of your own: `DATABASE_URL=postgres://… cargo run --example embedded`.
//!
//! The database has the schema (`postrider init`). Every event that is committed from now on is printed, until Ctrl-C.

use std::error::Error;

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Relay, RelaySettings, Report, Sink, SinkSettings, Unavailable};

/// Prints every event. A sink that talks to somebody waits here for their confirmation, and says what was refused.
struct Printer;

impl Sink for Printer {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            for message in batch {
                println!(
                    "{} {} {}",
                    message.id,
                    message.record.r#type,
                    String::from_utf8_lossy(&message.body)
                );
            }
            Report::delivered(batch.len())
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?.parse()?;
    let printer =
        Target::Custom(Custom::new("printer", || Box::pin(async { Ok(Box::new(Printer) as Box<dyn Sink>) })));
    let mut relay = Relay::start(RelaySettings::new(database, vec![SinkSettings::new("printer", printer)]))?;

    // Your service runs here. It ends when it is told to, or when the relay cannot go on by itself.
    let ended = tokio::select! {
        told = tokio::signal::ctrl_c() => told.map_err(Into::into),
        error = relay.ended() => Err(error.into()),
    };

    // Whatever ended it: what was sent is settled, and the lanes are handed back.
    relay.stop().await;
    ended
}
