//! What one test has around it: the proxy, the books, and the events it has made.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use uuid::Uuid;

use super::carrier::Carrier;
use super::event::Event;
use super::{Control, Door, Subject, Test, Way};
use crate::checker::{Ledger, Receipts, Report};
use crate::proxy::Proxy;

/// Nothing that ends takes longer, on the busiest machine.
pub(super) const LONGEST: Duration = Duration::from_mins(2);

/// What a sink is told to wait where nothing is to go wrong.
pub(super) const PATIENT: Duration = Duration::from_secs(20);

/// And where something is: the test waits for it.
pub(super) const IMPATIENT: Duration = Duration::from_millis(700);

pub(super) struct Stage<'a> {
    pub(super) subject: &'a dyn Subject,
    pub(super) test: Test,
    pub(super) ledger: Ledger,
    proxy: Option<Proxy>,
    /// Of this test.
    events: HashMap<Uuid, (String, u64)>,
    /// Of all tests: anything else is invented.
    known: &'a mut HashSet<Uuid>,
    next: HashMap<String, u64>,
}

impl<'a> Stage<'a> {
    /// One test, from its proxy to its last check. A server that was frozen or killed is back for the next.
    pub(super) async fn run(
        subject: &'a dyn Subject,
        test: Test,
        known: &'a mut HashSet<Uuid>,
    ) -> Result<()> {
        let proxy = match subject.upstream(Door::Plain) {
            Some(upstream) => Some(Proxy::start(upstream).await?),
            None => None,
        };
        let mut stage = Self {
            subject,
            test,
            ledger: Ledger::new(),
            proxy,
            events: HashMap::new(),
            known,
            next: HashMap::new(),
        };
        let kills = u32::try_from(subject.kills()).unwrap_or(u32::MAX);
        match tokio::time::timeout(LONGEST * (4 + kills), test.run(&mut stage)).await {
            Ok(result) => result,
            Err(_) => bail!("it does not come to an end"),
        }
    }

    /// The proxy, which every sink with a server has.
    pub(super) fn proxy(&self) -> Result<&Proxy> {
        self.proxy.as_ref().context("there is no server to put a proxy in front of: say so in `exempt`")
    }

    /// Sends new connections to where this door is.
    pub(super) fn point_at(&self, door: Door) -> Result<()> {
        let upstream = self.subject.upstream(door).with_context(|| format!("there is no way to {door:?}"))?;
        self.proxy()?.set_upstream(upstream);
        Ok(())
    }

    pub(super) fn way(&self, patience: Duration, door: Door) -> Way {
        Way { port: self.proxy.as_ref().map_or(0, Proxy::port), patience, door }
    }

    /// Somebody who carries events to the sink as the engine does.
    pub(super) fn carrier(&self, patience: Duration) -> Carrier<'a> {
        Carrier::new(self.subject, self.way(patience, Door::Plain))
    }

    pub(super) async fn server(&self, what: Control) -> Result<()> {
        self.subject.server(what).await.with_context(|| format!("{what:?} of the server"))
    }

    /// So many events, of these keys in turn, and as many more without a key as there are turns.
    pub(super) fn events(&mut self, keys: &[&str], count: usize, size: usize) -> Vec<Event> {
        let destination = self.subject.destination();
        let mut turns = keys.iter().map(|key| Some(*key)).chain([None]).cycle();
        (0..count).map(|_| self.event(turns.next().flatten(), &destination, size)).collect()
    }

    /// One event.
    pub(super) fn event(&mut self, key: Option<&str>, destination: &str, size: usize) -> Event {
        // Keys of other tests are other keys.
        let key = key.map(|key| format!("{:?}-{key}", self.test));
        // One without a key has no order: as if it were its own.
        let next = self.next.entry(key.clone().unwrap_or_default()).or_default();
        *next += 1;
        let event = Event::new(key.as_deref(), *next, destination, size);
        let key = key.unwrap_or_else(|| event.id().to_string());
        self.ledger.attempt(event.id(), &key, event.number);
        self.known.insert(event.id());
        self.events.insert(event.id(), (key, event.number));
        event
    }

    /// What the server has of this test, against what the sink said.
    pub(super) async fn check(&self) -> Result<Report> {
        let stored = self.subject.stored().await.context("reading back what the server has")?;
        let receipts = Receipts::new();
        for id in stored {
            ensure!(self.known.contains(&id), "the server has {id}, which was never sent");
            if let Some((key, number)) = self.events.get(&id) {
                receipts.record(0, id, key, *number);
            }
        }
        let report = self.ledger.check(&receipts);
        ensure!(report.is_faithful(), "{report}");
        ensure!(
            report.duplicated.is_empty() || !self.subject.never_repeats(),
            "the server was to know events again by their ids: {report}"
        );
        Ok(report)
    }
}
