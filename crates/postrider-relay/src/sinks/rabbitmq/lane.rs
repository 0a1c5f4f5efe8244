//! What one channel carries of a batch.
//!
//! It goes in windows: of each key the next event, all of them published at once, and nothing more until the server has answered for every
//! one. Two things ask for that. The server judges each message by itself: it would keep a later event of a key where it has refused an
//! earlier one. And lapin hands out the messages that come back as unroutable with *some* confirmation, which is not always their own:
//! when all of a window are in, so are all that came back, and their ids say whose they are.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use tokio::time::timeout;

use super::config::{RabbitMqConfig, Unroutable};
use super::connection::{Limit, channel};
use super::error::{
    Blame, blame, forbidden, is_unreadable, named, said, silent, too_large, unavailable, unreadable,
};
use super::message::{Prepared, prepared};
use crate::sink::{Message, Outcome, Refusal, RefusalKind, Unavailable, UnavailableKind};

/// An event of so many bytes travels alone, as it may be too many for the server: that closes the channel, and takes the confirmations of
/// whatever else is on it along.
const LARGE: usize = 1 << 20;

/// Why a delivery ended early.
pub(super) enum Trouble {
    /// The connection is of no use any more.
    Lost(Unavailable),
    /// It is good, and the server does not take these events now.
    Waits(Unavailable),
}

/// One delivery.
pub(super) struct Round<'a> {
    pub(super) config: &'a RabbitMqConfig,
    pub(super) connection: &'a lapin::Connection,
    pub(super) limit: &'a Limit,
    pub(super) largest_headers: usize,
    pub(super) batch: &'a [Message<'a>],
    pub(super) outcomes: &'a Mutex<Vec<Outcome>>,
    /// Counts the events that nobody was there to take, and that were let go.
    pub(super) dropped: &'a AtomicU64,
    /// The connection is lost: nothing more is sent.
    pub(super) is_over: AtomicBool,
    /// One event after the other, on all channels together: one of them is to be found out.
    pub(super) is_careful: bool,
    /// The server minded an event, and it is not known which.
    pub(super) is_unclear: &'a AtomicBool,
}

/// The places of events in the batch: those of one key together and in order, each without a key alone.
type Chain = VecDeque<usize>;

/// An event of a window.
struct Entry {
    /// Where its chain is.
    chain: usize,
    place: usize,
    /// Until it is sent.
    ready: Prepared,
}

/// What the server said to the messages of a window.
struct Answers {
    /// Those that it did not take.
    nacked: Vec<usize>,
    /// The ids of those that came back, and why.
    returned: HashMap<ShortString, String>,
}

impl Round<'_> {
    /// Carries the batch, each channel its share.
    pub(super) async fn carry_all(
        &self,
        channels: &mut [Channel],
        shares: Vec<Vec<Chain>>,
    ) -> Vec<Result<(), Trouble>> {
        let lanes = channels.iter_mut().zip(shares);
        if !self.is_careful {
            return join_all(lanes.map(|(channel, share)| self.carry(channel, share))).await;
        }
        let mut ends = Vec::new();
        for (channel, share) in lanes {
            ends.push(self.carry(channel, share).await);
        }
        ends
    }

    /// Carries what this channel has of the batch. An error is about what was left; everything else has its outcome.
    async fn carry(&self, channel: &mut Channel, mut chains: Vec<Chain>) -> Result<(), Trouble> {
        let mut waits = None;
        // Each of these goes alone, until none is left.
        let mut suspects: BTreeSet<usize> = BTreeSet::new();
        if self.is_careful {
            suspects.extend(chains.iter().flatten());
        }
        loop {
            chains.retain(|chain| !chain.is_empty());
            if chains.is_empty() || self.is_over.load(Ordering::Relaxed) {
                return waits.map_or(Ok(()), |why| Err(Trouble::Waits(why)));
            }
            let mut window = self.window(&mut chains, suspects.pop_first());
            if window.is_empty() {
                continue;
            }
            match self.publish(channel, &mut window).await {
                Ok(answers) => waits = self.settle(&window, &answers, &mut chains).or(waits),
                Err(Failure::Channel(error)) => match self.mend(channel, error, &window, &mut chains).await {
                    Ok(unclear) => suspects.extend(unclear),
                    Err(why) => {
                        self.is_over.store(true, Ordering::Relaxed);
                        return Err(Trouble::Lost(why));
                    }
                },
                Err(Failure::Silence) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    return Err(Trouble::Lost(silent("RabbitMQ did not confirm in time")));
                }
            }
        }
    }

    /// The next event of each key, ready to be sent; or this one alone. One that can be refused here is.
    fn window(&self, chains: &mut [Chain], alone: Option<usize>) -> Vec<Entry> {
        let mut window = Vec::with_capacity(chains.len());
        let mut large = None;
        for (at, chain) in chains.iter_mut().enumerate() {
            let Some(&place) = chain.front() else { continue };
            if alone.is_some_and(|alone| alone != place) {
                continue;
            }
            match self.prepare(&self.batch[place]) {
                Err(refusal) => {
                    self.set(place, Outcome::Refused(refusal));
                    chain.clear();
                }
                Ok(ready) => {
                    let entry = Entry { chain: at, place, ready };
                    if self.batch[place].body.len() < LARGE {
                        window.push(entry);
                    } else {
                        large.get_or_insert(entry);
                    }
                }
            }
        }
        if window.is_empty() {
            window.extend(large);
        }
        window
    }

    fn prepare(&self, message: &Message<'_>) -> Result<Prepared, Refusal> {
        match self.limit.get() {
            Some(most) if message.body.len() as u64 > most => Err(too_large(message.body.len(), most)),
            _ => prepared(message, self.largest_headers),
        }
    }

    /// Publishes, and waits for every answer. Of a window that was not answered as a whole, nothing counts.
    async fn publish(&self, channel: &Channel, window: &mut [Entry]) -> Result<Answers, Failure> {
        let exchange = ShortString::from(self.config.exchange.as_str());
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let mut confirmations: FuturesUnordered<_> = window
            .iter_mut()
            .map(|entry| {
                let place = entry.place;
                let Prepared { routing_key, properties } = std::mem::take(&mut entry.ready);
                let exchange = exchange.clone();
                async move {
                    let body = self.batch[place].body.as_slice();
                    let sent =
                        channel.basic_publish(exchange, routing_key, options, body, properties).await?;
                    Ok::<_, lapin::Error>((place, sent.await?))
                }
            })
            .collect();
        let mut answers = Answers { nacked: Vec::new(), returned: HashMap::new() };
        let mut failure = None;
        loop {
            // Anew with each answer: a server that answers is at work.
            let Ok(next) = timeout(self.config.timeout.0, confirmations.next()).await else {
                return Err(Failure::Silence);
            };
            let Some(next) = next else {
                return failure.map_or(Ok(answers), |error| Err(Failure::Channel(error)));
            };
            let (place, confirmation) = match next {
                Ok(confirmed) => confirmed,
                Err(error) => {
                    // Some only find the channel closed, and others know why.
                    if failure.is_none() || said(&error).is_some() {
                        failure = Some(error);
                    }
                    continue;
                }
            };
            let returned = match confirmation {
                Confirmation::Ack(returned) => returned,
                Confirmation::Nack(returned) => {
                    answers.nacked.push(place);
                    returned
                }
                Confirmation::NotRequested => return Err(Failure::Silence),
            };
            if let Some(returned) = returned
                && let Some(id) = returned.properties.message_id()
            {
                answers.returned.insert(id.clone(), returned.reply_text.to_string());
            }
        }
    }

    /// Gives each event of a window its outcome, and says what has to be waited for.
    fn settle(&self, window: &[Entry], answers: &Answers, chains: &mut [Chain]) -> Option<Unavailable> {
        let mut waits = None;
        let mut dropped = 0;
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in window {
            let place = entry.place;
            match self.fate(place, answers) {
                Fate::Delivered | Fate::Dropped if chains[entry.chain].pop_front() != Some(place) => {}
                Fate::Delivered => outcomes[place] = Outcome::Delivered,
                Fate::Dropped => {
                    outcomes[place] = Outcome::Delivered;
                    dropped += 1;
                }
                Fate::Refused(refusal) => {
                    outcomes[place] = Outcome::Refused(refusal);
                    chains[entry.chain].clear();
                }
                Fate::Waits(why) => {
                    waits = Some(why);
                    chains[entry.chain].clear();
                }
            }
        }
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        waits
    }

    fn fate(&self, place: usize, answers: &Answers) -> Fate {
        if answers.nacked.contains(&place) {
            let why = "a queue does not take it (a nack: it is full, or it cannot be reached)";
            return Fate::Waits(Unavailable::new(UnavailableKind::Full, why));
        }
        if answers.returned.is_empty() {
            return Fate::Delivered;
        }
        let message = &self.batch[place];
        let Some(said) = answers.returned.get(message.id.to_string().as_str()) else {
            return Fate::Delivered;
        };
        let (exchange, key) = (&self.config.exchange, &message.destination);
        let why =
            || format!("no queue is bound to the exchange `{exchange}` for the routing key {key:?} ({said})");
        match self.config.unroutable() {
            Unroutable::DropCounted => Fate::Dropped,
            Unroutable::Park => Fate::Refused(Refusal { kind: RefusalKind::Unroutable, reason: why() }),
            Unroutable::Wait => {
                Fate::Waits(Unavailable::new(UnavailableKind::Missing, format!("{}; bind one", why())))
            }
        }
    }

    /// The server has closed the channel. If that was because of single events, they are refused, and the others go over a new one. Says
    /// which have to go alone, as it may be any of them that the server minds.
    async fn mend(
        &self,
        channel_lost: &mut Channel,
        error: lapin::Error,
        window: &[Entry],
        chains: &mut [Chain],
    ) -> Result<Vec<usize>, Unavailable> {
        if is_unreadable(&error) {
            // The whole connection has gone with it, and whatever was on its way there.
            match window {
                [Entry { chain, place, .. }] if self.is_careful => {
                    let refusal = unreadable(&self.batch[*place].destination);
                    self.set(*place, Outcome::Refused(refusal));
                    chains[*chain].clear();
                }
                _ => self.is_unclear.store(true, Ordering::Relaxed),
            }
            return Err(unavailable(error));
        }
        let Some(blame) = blame(&error) else { return Err(unavailable(error)) };
        let refused = self.refused(&blame, window);
        let mut unclear = Vec::new();
        match blame {
            Blame::Larger(_) if refused.is_empty() => return Err(unavailable(error)),
            Blame::Larger(most) => self.limit.learn(most),
            Blame::RoutingKey(_) if refused.is_empty() => {
                unclear.extend(window.iter().map(|entry| entry.place));
                // For the next delivery, should the connection go too: lapin sends what it still has for a channel that is closed, and the
                // server takes that ill.
                self.is_unclear.store(true, Ordering::Relaxed);
            }
            Blame::RoutingKey(_) => {}
        }
        for (Entry { chain, place, .. }, refusal) in refused {
            self.set(*place, Outcome::Refused(refusal));
            chains[*chain].clear();
        }
        let opened = timeout(self.config.timeout.0, channel(self.connection)).await;
        *channel_lost =
            opened.map_err(|_| silent("RabbitMQ opened no channel in time"))?.map_err(unavailable)?;
        Ok(unclear)
    }

    /// Whom the server means, and why it does not take them; nobody if that is not certain.
    fn refused<'a>(&self, blame: &Blame, window: &'a [Entry]) -> Vec<(&'a Entry, Refusal)> {
        let message = |entry: &Entry| &self.batch[entry.place];
        match blame {
            Blame::Larger(most) => {
                let sized = window.iter().map(|entry| (entry, message(entry).body.len()));
                let large = sized.filter(|(_, size)| *size as u64 > *most);
                large.map(|(entry, size)| (entry, too_large(size, *most))).collect()
            }
            Blame::RoutingKey(words) => {
                let keys = window.iter().map(|entry| message(entry).destination.as_str());
                let key = match window {
                    // Who is alone need not be named.
                    [entry] => Some(message(entry).destination.as_str()),
                    _ => named(words, &self.config.exchange, keys),
                };
                let meant = window.iter().filter(|entry| Some(message(entry).destination.as_str()) == key);
                meant.map(|entry| (entry, forbidden(&message(entry).destination))).collect()
            }
        }
    }

    fn set(&self, place: usize, outcome: Outcome) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)[place] = outcome;
    }
}

/// What becomes of an event that the server has answered for.
enum Fate {
    Delivered,
    /// Nobody got it, as the configuration wants it.
    Dropped,
    Refused(Refusal),
    Waits(Unavailable),
}

/// Why a window was not answered.
enum Failure {
    /// The channel, or the connection, is closed.
    Channel(lapin::Error),
    /// Nothing came in time.
    Silence,
}
