//! A far side for relays: it keeps what it is sent, in order of arrival, and confirms as a test wants.

mod connection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::checker::Receipts;

/// How what was received and stored is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// At once.
    All,
    /// Not at all: confirmations are withheld until they are all given again.
    None,
    /// Every second one; the others are withheld.
    EverySecond,
    /// So long after it arrived.
    After(Duration),
}

/// An event as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The number by which the relay introduced itself.
    pub relay: u32,
    /// The event.
    pub id: Uuid,
    /// Its key.
    pub key: Box<str>,
    /// When.
    pub at: Instant,
}

/// A server that many relays may talk to at once, over TCP in lines: first `relay NUMBER`, then `ID KEY NUMBER` for each event. Each is
/// stored and then confirmed by a line with its id. Keys hold no blanks.
///
/// What it received is in [`receipts`](Self::receipts) as from one reader: order is checked over all relays together.
pub struct Collector {
    address: SocketAddr,
    books: Arc<Books>,
    task: JoinHandle<()>,
}

/// What all connections write into.
pub(crate) struct Books {
    receipts: Receipts,
    arrivals: Mutex<Vec<Arrival>>,
    /// How many events each relay has sent.
    counts: watch::Sender<HashMap<u32, usize>>,
    /// How many confirmations are withheld from each relay.
    withheld: watch::Sender<HashMap<u32, usize>>,
    confirm: watch::Sender<Confirm>,
}

impl Books {
    /// Arrivals and receipts have one order.
    fn store(&self, relay: u32, id: Uuid, key: &str, number: u64) {
        {
            let mut arrivals = self.arrivals();
            self.receipts.record(0, id, key, number);
            arrivals.push(Arrival { relay, id, key: key.into(), at: Instant::now() });
        }
        self.counts.send_modify(|counts| *counts.entry(relay).or_default() += 1);
    }

    fn withhold(&self, relay: u32, count: usize) {
        self.withheld.send_modify(|withheld| {
            withheld.insert(relay, count);
        });
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        // A panic elsewhere must not hide its cause behind a poisoned lock.
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector {
    /// Listens on a port of its own.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening as a collector")?;
        let address = listener.local_addr()?;
        let books = Arc::new(Books {
            receipts: Receipts::new(),
            arrivals: Mutex::default(),
            counts: watch::channel(HashMap::new()).0,
            withheld: watch::channel(HashMap::new()).0,
            confirm: watch::channel(Confirm::All).0,
        });
        let task = tokio::spawn(connection::accept(listener, Arc::clone(&books)));
        Ok(Self { address, books, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it received.
    pub fn receipts(&self) -> &Receipts {
        &self.books.receipts
    }

    /// All of it, in order of arrival.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.books.arrivals().clone()
    }

    /// Takes those that have come out of `events`.
    pub fn strike(&self, events: &mut HashSet<Uuid>) {
        for arrival in self.books.arrivals().iter() {
            events.remove(&arrival.id);
        }
    }

    /// From now on. [`Confirm::All`] and [`Confirm::After`] give what was withheld.
    pub fn confirm(&self, how: Confirm) {
        self.books.confirm.send_replace(how);
    }

    /// Waits until a relay has sent one event more than now.
    pub async fn next_from(&self, relay: u32) {
        let mut counts = self.books.counts.subscribe();
        let count = |counts: &HashMap<u32, usize>| counts.get(&relay).copied().unwrap_or_default();
        let before = count(&counts.borrow());
        // The sender lives as long as we do.
        let _ = counts.wait_for(|counts| count(counts) > before).await;
    }

    /// Waits until confirmations are withheld from a relay.
    pub async fn withholds_from(&self, relay: u32) {
        let mut withheld = self.books.withheld.subscribe();
        let _ = withheld.wait_for(|withheld| withheld.get(&relay).is_some_and(|count| *count > 0)).await;
    }

    /// The last events that a relay sent, up to so many.
    pub fn last_from(&self, relay: u32, most: usize) -> Vec<Uuid> {
        let arrivals = self.books.arrivals();
        arrivals
            .iter()
            .rev()
            .filter(|arrival| arrival.relay == relay)
            .take(most)
            .map(|arrival| arrival.id)
            .collect()
    }

    /// How many different events of each relay came again, from another one.
    pub fn sent_again(&self) -> BTreeMap<u32, usize> {
        let mut last: HashMap<Uuid, u32> = HashMap::new();
        let mut again: BTreeMap<u32, usize> = BTreeMap::new();
        for arrival in self.books.arrivals().iter() {
            match last.insert(arrival.id, arrival.relay) {
                Some(before) if before != arrival.relay => *again.entry(before).or_default() += 1,
                _ => {}
            }
        }
        again
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
