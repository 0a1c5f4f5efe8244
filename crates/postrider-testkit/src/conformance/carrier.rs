//! Carries events to a sink as the engine does, and holds every answer against the contract.

use std::collections::HashSet;
use std::error::Error;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use postrider_relay::sink::{Message, Outcome, Refusal, Report, Sink, Unavailable};

use super::event::Event;
use super::stage::LONGEST;
use super::{Subject, Way};
use crate::checker::Ledger;

/// As the engine's default.
const BATCH: usize = 500;
const PAUSE: Duration = Duration::from_millis(20);

/// What became of an event in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    Refused(Refusal),
    /// An earlier event of its key was refused.
    Behind,
}

/// Has the sink, opens it when it is needed.
pub(super) struct Carrier<'a> {
    subject: &'a dyn Subject,
    way: Way,
    sink: Option<Box<dyn Sink>>,
    /// Whether the sink has ever been unavailable.
    pub(super) was_interrupted: bool,
}

impl<'a> Carrier<'a> {
    pub(super) fn new(subject: &'a dyn Subject, way: Way) -> Self {
        Self { subject, way, sink: None, was_interrupted: false }
    }

    /// One delivery. What was called delivered is in the books as that; what was sent and not confirmed is in doubt.
    pub(super) async fn deliver(&mut self, events: &[&Event], ledger: &Ledger) -> Result<Report> {
        let messages: Vec<Message<'_>> = events.iter().map(|event| event.message()).collect();
        let report = within(self.send(&messages), "a delivery").await?;
        hold(events, &report)?;
        for (event, outcome) in events.iter().zip(&report.outcomes) {
            match outcome {
                Outcome::Delivered => ledger.commit(event.id()),
                Outcome::NotSent if report.unavailable.is_some() => ledger.in_doubt(event.id()),
                Outcome::NotSent | Outcome::Refused(_) => {}
            }
        }
        self.was_interrupted |= report.unavailable.is_some();
        Ok(report)
    }

    async fn send(&mut self, messages: &[Message<'_>]) -> Report {
        let sink = match &mut self.sink {
            Some(sink) => sink,
            none => match self.subject.open(&self.way).await {
                Ok(sink) => none.insert(sink),
                Err(why) => return Report::unavailable(messages.len(), why),
            },
        };
        sink.deliver(messages).await
    }

    /// Delivers until each event is delivered, refused, or behind one that was.
    pub(super) async fn carry(&mut self, events: &[Event], ledger: &Ledger) -> Result<Vec<Fate>> {
        let begun = Instant::now();
        let mut fates: Vec<Option<Fate>> = vec![None; events.len()];
        let mut stopped: HashSet<&str> = HashSet::new();
        loop {
            let open: Vec<usize> = (0..events.len()).filter(|at| fates[*at].is_none()).take(BATCH).collect();
            if open.is_empty() {
                return Ok(fates.into_iter().flatten().collect());
            }
            let batch: Vec<&Event> = open.iter().map(|at| &events[*at]).collect();
            let report = self.deliver(&batch, ledger).await?;
            for (at, outcome) in open.into_iter().zip(report.outcomes) {
                let key = events[at].key();
                fates[at] = match outcome {
                    Outcome::Delivered => Some(Fate::Delivered),
                    Outcome::Refused(refusal) => {
                        stopped.extend(key);
                        Some(Fate::Refused(refusal))
                    }
                    Outcome::NotSent => key.filter(|key| stopped.contains(key)).map(|_| Fate::Behind),
                };
            }
            if let Some(why) = report.unavailable {
                ensure!(begun.elapsed() < LONGEST, "the sink does not come back: {}", chain(&why));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// As [`Carrier::carry`], where nothing is to be refused.
    pub(super) async fn carry_all(&mut self, events: &[Event], ledger: &Ledger) -> Result<()> {
        let fates = self.carry(events, ledger).await?;
        match fates.into_iter().find(|fate| *fate != Fate::Delivered) {
            None => Ok(()),
            Some(fate) => bail!("an ordinary event was not delivered: {fate:?}"),
        }
    }

    /// What a sink that cannot work says, at opening or at its first delivery.
    pub(super) async fn trouble(&mut self, event: &Event) -> Result<Unavailable> {
        let report = within(self.send(&[event.message()]), "a delivery").await?;
        report.unavailable.ok_or_else(|| anyhow!("it was let in: {:?}", report.outcomes))
    }

    /// Closes the sink. Nothing, if it was never opened.
    pub(super) async fn close(&mut self) -> Result<Result<(), Unavailable>> {
        match self.sink.take() {
            Some(sink) => within(sink.close(), "closing").await,
            None => Ok(Ok(())),
        }
    }
}

/// What every report must be.
fn hold(events: &[&Event], report: &Report) -> Result<()> {
    let Report { outcomes, unavailable } = report;
    ensure!(outcomes.len() == events.len(), "{} outcomes for {} events", outcomes.len(), events.len());
    let mut stopped: HashSet<&str> = HashSet::new();
    for (event, outcome) in events.iter().zip(outcomes) {
        let is_behind = event.key().is_some_and(|key| stopped.contains(key));
        match outcome {
            Outcome::Delivered => {
                ensure!(!is_behind, "{} was delivered before an earlier event of its key", event.id());
            }
            Outcome::NotSent => {
                ensure!(is_behind || unavailable.is_some(), "{} was not sent, without a reason", event.id());
                stopped.extend(event.key());
            }
            Outcome::Refused(_) => stopped.extend(event.key()),
        }
    }
    Ok(())
}

/// A sink comes back by itself.
pub(super) async fn within<T>(work: impl Future<Output = T>, what: &str) -> Result<T> {
    match tokio::time::timeout(LONGEST, work).await {
        Ok(answer) => Ok(answer),
        Err(_) => bail!("{what} has not come back after {LONGEST:?}"),
    }
}

/// An error with its causes.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
