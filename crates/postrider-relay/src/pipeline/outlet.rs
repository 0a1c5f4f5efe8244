//! The way out: from records to messages to the sink, and what became of each.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use postrider::log::Record;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::durability::Grade;
use crate::prepare::{Prepared, Preparer};
use crate::settings::{Ordering, SinkSettings};
use crate::sink::{Message, Outcome, Refusal, Report, Sink, Unavailable, UnavailableKind};
use crate::sinks::Target;

/// What became of one record.
#[derive(Debug)]
pub(super) enum Sent {
    /// The far side has it.
    Delivered,
    /// The filter says no.
    Filtered,
    /// It was refused.
    Refused(Refusal),
    /// An earlier event of its key was refused in the same delivery; this one was not tried.
    Behind,
    /// Not sent, or not confirmed.
    Unsent,
}

/// What became of a delivery.
pub(super) struct Delivered {
    /// For each record, in order.
    pub(super) sent: Vec<Sent>,
    pub(super) unavailable: Option<Unavailable>,
    /// The far side was asked at all: where every event is filtered, refused or waits behind another, nothing is known of it.
    pub(super) is_asked: bool,
    /// Of those that were delivered, how many nobody has got, as the configuration wants it.
    pub(super) dropped: u64,
    pub(super) took: Duration,
}

/// A sink, opened when it is needed, and everything compiled for it.
pub(super) struct Outlet {
    name: String,
    target: Target,
    sink: Option<Box<dyn Sink>>,
    preparer: Preparer,
    /// Whether a refused event stops its key.
    strict: bool,
    required: Option<Grade>,
}

impl Outlet {
    pub(super) fn new(settings: &SinkSettings, preparer: Preparer) -> Self {
        Self {
            name: settings.name.clone(),
            target: settings.target.clone(),
            sink: None,
            preparer,
            strict: settings.ordering == Ordering::Strict,
            required: settings.require_durability,
        }
    }

    /// Whether it should be opened although there is nothing to deliver.
    pub(super) fn is_to_be_opened(&self) -> bool {
        self.sink.is_none() && self.target.opens_early()
    }

    /// Delivers records in order, or only opens the sink if there are none. `is_held` tells the keys that something is parked of already.
    pub(super) async fn deliver(&mut self, records: &[&Record], is_held: impl Fn(&str) -> bool) -> Delivered {
        let begun = Instant::now();
        if records.is_empty() {
            let unavailable = self.open().await.err();
            return Delivered {
                sent: Vec::new(),
                unavailable,
                is_asked: true,
                dropped: 0,
                took: begun.elapsed(),
            };
        }
        let (mut sent, messages, places) = self.prepare(records, is_held);
        let (mut unavailable, mut dropped) = (None, 0);
        let is_asked = !messages.is_empty();
        if is_asked {
            let report = self.send(&messages).await;
            debug_assert_eq!(report.outcomes.len(), messages.len(), "an outcome for each event");
            for (place, outcome) in places.into_iter().zip(report.outcomes) {
                sent[place] = match outcome {
                    Outcome::Delivered => Sent::Delivered,
                    Outcome::Refused(refusal) => Sent::Refused(refusal),
                    Outcome::NotSent => Sent::Unsent,
                };
            }
            unavailable = report.unavailable;
            dropped = self.sink.as_ref().map_or(0, |sink| sink.dropped());
        }
        keep_order(records, &mut sent);
        Delivered { sent, unavailable, is_asked, dropped, took: begun.elapsed() }
    }

    /// What needs no sink is decided here; the rest becomes messages, with their places.
    fn prepare<'a>(
        &mut self,
        records: &[&'a Record],
        is_held: impl Fn(&str) -> bool,
    ) -> (Vec<Sent>, Vec<Message<'a>>, Vec<usize>) {
        let key = |record: &'a Record| record.key.as_deref().filter(|_| self.strict);
        let free: Vec<&Record> =
            records.iter().copied().filter(|record| !key(record).is_some_and(&is_held)).collect();
        // An expression may take its time, and this thread has other work, if there are others to do it.
        let may_leave = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        let prepared = if may_leave && self.preparer.waits() {
            tokio::task::block_in_place(|| self.preparer.prepare_all(&free))
        } else {
            self.preparer.prepare_all(&free)
        };
        let mut prepared = prepared.into_iter();

        let mut sent = Vec::with_capacity(records.len());
        let mut messages = Vec::with_capacity(free.len());
        let mut places = Vec::with_capacity(free.len());
        let mut stopped: HashSet<&str> = HashSet::new();
        for (place, record) in records.iter().enumerate() {
            let key = record.key.as_deref().filter(|_| self.strict);
            if key.is_some_and(&is_held) {
                sent.push(Sent::Behind);
                continue;
            }
            sent.push(match prepared.next() {
                _ if key.is_some_and(|key| stopped.contains(key)) => Sent::Behind,
                Some(Prepared::Send(message)) => {
                    messages.push(message);
                    places.push(place);
                    Sent::Unsent
                }
                Some(Prepared::Filtered) => Sent::Filtered,
                Some(Prepared::Refused(refusal)) => {
                    stopped.extend(key);
                    Sent::Refused(refusal)
                }
                None => Sent::Unsent,
            });
        }
        (sent, messages, places)
    }

    async fn send(&mut self, messages: &[Message<'_>]) -> Report {
        match self.open().await {
            Ok(sink) => sink.deliver(messages).await,
            Err(unavailable) => Report::unavailable(messages.len(), unavailable),
        }
    }

    async fn open(&mut self) -> Result<&mut Box<dyn Sink>, Unavailable> {
        match &mut self.sink {
            Some(sink) => Ok(sink),
            none => Ok(none.insert(open(&self.name, &self.target, self.required).await?)),
        }
    }

    /// Leaves the sink to others; it is opened again when there is something to deliver.
    pub(super) fn let_go(&mut self) {
        self.sink = None;
    }

    pub(super) async fn close(self) -> Result<(), Unavailable> {
        match self.sink {
            Some(sink) => sink.close().await,
            None => Ok(()),
        }
    }
}

/// Opens a sink that is as good as it has to be.
async fn open(name: &str, target: &Target, required: Option<Grade>) -> Result<Box<dyn Sink>, Unavailable> {
    if let Some(required) = required
        && let Some(durability) = target.durability().await?
        && let Some(objection) = durability.objection(required)
    {
        return Err(Unavailable::new(UnavailableKind::Weak, objection));
    }
    target.open_for(name).await
}

/// Nothing may be parked or passed over while an earlier event of its key is still to be sent.
fn keep_order(records: &[&Record], sent: &mut [Sent]) {
    if !sent.iter().any(|sent| matches!(sent, Sent::Unsent)) {
        return;
    }
    let mut unsent: HashSet<&str> = HashSet::new();
    for (record, sent) in records.iter().zip(sent) {
        let Some(key) = record.key.as_deref() else { continue };
        match sent {
            Sent::Unsent => drop(unsent.insert(key)),
            Sent::Delivered => {}
            _ if unsent.contains(key) => *sent = Sent::Unsent,
            _ => {}
        }
    }
}
