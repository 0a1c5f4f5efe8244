//! A sink of moods, all of which come from the seed.

use std::sync::Arc;

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable, UnavailableKind};
use rand::RngExt as _;
use uuid::Uuid;

use super::Storm;

/// An event that was delivered.
#[derive(Debug, Clone)]
pub struct Taken {
    pub relay: u32,
    pub id: Uuid,
    pub key: String,
    pub n: u64,
}

pub struct StormSink {
    storm: Arc<Storm>,
    relay: u32,
}

#[derive(PartialEq, Eq)]
enum Mood {
    Take,
    Refuse,
    Away,
}

impl StormSink {
    pub fn target(storm: Arc<Storm>, relay: u32) -> Target {
        Target::Custom(Custom::new("storm", move || {
            let sink = Self { storm: Arc::clone(&storm), relay };
            Box::pin(async { Ok(Box::new(sink) as Box<dyn Sink>) })
        }))
    }

    /// The same for the same seed, event and attempt. One event in a hundred is refused again and again.
    fn mood(&self, taken: &Taken) -> Mood {
        if self.storm.is_calm() {
            return Mood::Take;
        }
        let mut shown = self.storm.shown.lock().unwrap();
        let attempt = shown.entry(taken.id).or_default();
        *attempt += 1;
        let key: u64 = taken.key.trim_start_matches("key-").parse().unwrap();
        let event = self.storm.seed.for_task((1 << 40) | (key << 20) | taken.n);
        let mut of_event = event.rng();
        let mut of_attempt = event.for_task(u64::from(*attempt)).rng();
        let is_stubborn = of_event.random_bool(0.01);
        let refused = if *attempt == 1 { 0.05 } else { 0.4 };
        match of_attempt.random_range(0.0..1.0) {
            _ if is_stubborn => Mood::Refuse,
            dice if dice < refused => Mood::Refuse,
            dice if dice > 0.998 => Mood::Away,
            _ => Mood::Take,
        }
    }

    fn outcome(&self, message: &Message<'_>) -> Result<Outcome, Unavailable> {
        let payload: serde_json::Value = serde_json::from_str(&message.record.payload).unwrap();
        let taken = Taken {
            relay: self.relay,
            id: message.record.id,
            key: message.record.key.clone().unwrap(),
            n: payload["n"].as_u64().unwrap(),
        };
        match self.mood(&taken) {
            Mood::Take => {
                self.storm.taken.lock().unwrap().push(taken);
                Ok(Outcome::Delivered)
            }
            Mood::Refuse => {
                Ok(Outcome::Refused(Refusal { kind: RefusalKind::Rejected, reason: "not today".to_owned() }))
            }
            Mood::Away => Err(Unavailable::new(UnavailableKind::Connection, "gone for a moment")),
        }
    }
}

impl Sink for StormSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut report = Report { outcomes: Vec::new(), unavailable: None };
            let mut stopped: Vec<&str> = Vec::new();
            for message in batch {
                let key = message.record.key.as_deref().unwrap();
                if report.unavailable.is_some() || stopped.contains(&key) {
                    report.outcomes.push(Outcome::NotSent);
                    continue;
                }
                // The relay may be dropped between any two events.
                tokio::task::yield_now().await;
                let outcome = self.outcome(message).unwrap_or_else(|unavailable| {
                    report.unavailable = Some(unavailable);
                    Outcome::NotSent
                });
                if matches!(outcome, Outcome::Refused(_)) {
                    stopped.push(key);
                }
                report.outcomes.push(outcome);
            }
            report
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}
