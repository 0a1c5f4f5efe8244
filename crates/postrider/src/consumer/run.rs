//! The loop: receive, hand out in order, settle, connect again, and come to an end.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::decode::decode;
use super::desk::{Desk, Line};
use super::handle::{Held, Verdict, handle};
use super::source::{Deliveries, Delivery, Grave, Link, Source, Terms, Trouble};
use super::telemetry::End;
use super::{Error, Event, Shared, letters, memory};
use crate::consume::{BoxError, Outcome, Tx};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For words that nobody may hear.
const FAREWELL: Duration = Duration::from_secs(2);
const NEVER: Duration = Duration::from_hours(1);

/// A connection whose messages the inbox remembers for long enough, or why there is none.
type Opened<L> = Result<(L, Deliveries<<L as Link>::Receipt>), Error>;
type Opening<'a, L> = Pin<Box<dyn Future<Output = Opened<L>> + Send + 'a>>;

/// A connection that stands.
struct Connection<L: Link> {
    link: Arc<L>,
    deliveries: Deliveries<L::Receipt>,
    next_keep: Option<Instant>,
}

pub(super) struct Loop<'a, S: Source> {
    shared: &'a Shared,
    source: &'a S,
    terms: &'a Terms,
    connection: Option<Connection<S::Link>>,
    opening: Option<Opening<'a, S::Link>>,
    /// Tells the messages of one connection from those of another.
    generation: u64,
    desk: Desk<Held<S::Link>>,
    /// What the broker has to hear of while it is in hand.
    in_hand: HashMap<u64, <S::Link as Link>::Receipt>,
    next: u64,
    failures: u32,
}

/// A message that was tried.
type Tried<L> = (Line, Held<L>, Verdict);

enum Happened<L: Link> {
    Stop,
    Tried(Box<Tried<L>>),
    Received(Option<Result<Delivery<L::Receipt>, Trouble>>),
    Opened(Opened<L>),
    Keep,
    Due,
}

impl<'a, S: Source> Loop<'a, S> {
    pub(super) fn new(shared: &'a Shared, source: &'a S, terms: &'a Terms) -> Self {
        Self {
            shared,
            source,
            terms,
            connection: None,
            opening: Some(Box::pin(open(shared, source, terms))),
            generation: 0,
            desk: Desk::new(),
            in_hand: HashMap::new(),
            next: 0,
            failures: 0,
        }
    }

    pub(super) async fn run<H, T, E>(
        mut self,
        stop: impl Future<Output = ()>,
        handler: &H,
    ) -> Result<(), Error>
    where
        H: AsyncFn(&mut Tx, Event<T>) -> Result<Outcome, E>,
        T: DeserializeOwned,
        E: Into<BoxError>,
    {
        let shared = self.shared;
        let mut stop = pin!(stop);
        let work = |line: Line, held| async move {
            let (held, verdict) = handle(shared, handler, held).await;
            (line, held, verdict)
        };
        let mut busy = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            while busy.len() < shared.concurrency {
                let Some((line, held)) = self.desk.next(now) else { break };
                busy.push(work(line, held));
            }
            shared.telemetry.in_hand(self.in_hand.len());
            let keep = self.connection.as_ref().and_then(|connection| connection.next_keep);
            let due = self.desk.wakes();
            let happened = tokio::select! {
                biased;
                () = &mut stop => Happened::Stop,
                Some(tried) = busy.next() => Happened::Tried(Box::new(tried)),
                () = sleep_until(keep.unwrap_or(now + NEVER)), if keep.is_some() => Happened::Keep,
                () = sleep_until(due.unwrap_or(now + NEVER)), if due.is_some() => Happened::Due,
                received = receive(self.connection.as_mut()) => Happened::Received(received),
                opened = opened(self.opening.as_mut()) => Happened::Opened(opened),
            };
            let trouble = match happened {
                Happened::Stop => break,
                Happened::Due => None,
                Happened::Keep => self.keep().await.err(),
                Happened::Tried(tried) => self.tried(*tried),
                Happened::Received(Some(Ok(delivery))) => self.received(delivery).await.err(),
                Happened::Received(Some(Err(trouble))) | Happened::Opened(Err(Error::Broker(trouble))) => {
                    Some(trouble)
                }
                Happened::Opened(Err(error)) => {
                    shared.telemetry.over();
                    return Err(error);
                }
                Happened::Received(None) => Some(Trouble::away("the connection has ended")),
                Happened::Opened(Ok((link, deliveries))) => {
                    self.connected(link, deliveries);
                    None
                }
            };
            match trouble {
                None => {}
                Some(trouble) if trouble.is_passing => self.lose(&trouble),
                Some(trouble) => {
                    shared.telemetry.over();
                    return Err(trouble.into());
                }
            }
        }
        self.drain(busy).await;
        shared.telemetry.over();
        Ok(())
    }

    fn connected(&mut self, link: S::Link, deliveries: Deliveries<<S::Link as Link>::Receipt>) {
        self.opening = None;
        self.generation += 1;
        let next_keep = link.keep_every().map(|every| Instant::now() + every);
        self.connection = Some(Connection { link: Arc::new(link), deliveries, next_keep });
        self.shared.telemetry.connected();
        tracing::info!(consumer = self.shared.consumer, broker = self.source.kind(), "connected");
    }

    /// What is in hand and not begun will come again; what is being worked on goes on, and is known again by the inbox.
    fn lose(&mut self, trouble: &Trouble) {
        let exponent = self.failures.min(16);
        self.failures += 1;
        let longest = FIRST_PAUSE.saturating_mul(1 << exponent).min(LONGEST_PAUSE);
        // Those who lost a broker together need not come back together.
        let pause = longest.mul_f64(rand::random_range(0.5..=1.0));
        if self.connection.take().is_some() {
            self.shared.telemetry.lost();
        }
        tracing::warn!(
            consumer = self.shared.consumer, broker = self.source.kind(), %trouble, ?pause,
            "the broker is away; connecting again"
        );
        self.desk.clear();
        self.in_hand.clear();
        let (shared, source, terms) = (self.shared, self.source, self.terms);
        self.opening = Some(Box::pin(async move {
            sleep(pause).await;
            open(shared, source, terms).await
        }));
    }

    async fn received(&mut self, delivery: Delivery<<S::Link as Link>::Receipt>) -> Result<(), Trouble> {
        self.failures = 0;
        let Some(connection) = &self.connection else { return Ok(()) };
        let link = Arc::clone(&connection.link);
        let event = match decode(&delivery.message) {
            Ok(event) => event,
            Err(error) => {
                let (consumer, reason) = (self.shared.consumer.as_str(), error.to_string());
                tracing::warn!(consumer, reason, "a message is no event and kept with the dead letters");
                let event_id = delivery.message.id.as_deref();
                let grave = Grave { consumer, event_id, reason: &reason, attempts: 0 };
                letters::bury(self.shared, &*link, &delivery.message, &grave).await?;
                link.discard(&delivery.receipt).await?;
                self.shared.telemetry.ended(End::Dead);
                return Ok(());
            }
        };
        let (number, is_repeated) = (self.next, delivery.is_repeated);
        self.next += 1;
        self.in_hand.insert(number, delivery.receipt.clone());
        let key = event.key.clone();
        let generation = self.generation;
        let held = Held {
            delivery,
            event,
            link,
            generation,
            number,
            begun: 0,
            is_counted: is_repeated,
            is_begun: false,
            reason: None,
        };
        self.desk.push(key, held, is_repeated);
        Ok(())
    }

    fn tried(&mut self, (line, held, verdict): Tried<S::Link>) -> Option<Trouble> {
        let is_current = held.generation == self.generation && self.connection.is_some();
        match verdict {
            Verdict::Again(pause) if is_current => {
                // Counted, and it came to nothing over the database: it may still be one that ends the process.
                let is_suspect = held.delivery.is_repeated && held.is_begun;
                self.desk.put_back(line, held, Instant::now() + pause, is_suspect);
                return None;
            }
            Verdict::Settled | Verdict::Again(_) | Verdict::Lost(_) => self.desk.finish(line),
        }
        if is_current {
            self.in_hand.remove(&held.number);
        }
        match verdict {
            Verdict::Lost(trouble) if is_current => Some(trouble),
            _ => None,
        }
    }

    async fn keep(&mut self) -> Result<(), Trouble> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let every = connection.link.keep_every();
        connection.next_keep = every.map(|every| Instant::now() + every);
        let receipts: Vec<_> = self.in_hand.values().cloned().collect();
        if receipts.is_empty() { Ok(()) } else { connection.link.keep(&receipts).await }
    }

    /// What was not begun is somebody else's at once; what was begun is finished, as long as the deadline lets it.
    async fn drain<F>(mut self, mut busy: FuturesUnordered<F>)
    where
        F: Future<Output = Tried<S::Link>>,
    {
        let deadline = Instant::now() + self.shared.drain;
        let Some(mut connection) = self.connection.take() else {
            while let Ok(Some(_)) = timeout_at(deadline, busy.next()).await {}
            return;
        };
        connection.deliveries.close();
        let mut unbegun: Vec<_> = self.desk.clear().into_iter().map(|held| held.delivery.receipt).collect();
        while let Ok(received) = connection.deliveries.try_recv() {
            unbegun.extend(received.ok().map(|delivery| delivery.receipt));
        }
        give_back(&*connection.link, &unbegun).await;
        while let Ok(Some((_, held, verdict))) = timeout_at(deadline, busy.next()).await {
            if matches!(verdict, Verdict::Again(_)) && held.generation == self.generation {
                give_back(&*connection.link, &[held.delivery.receipt]).await;
            }
        }
        if !busy.is_empty() {
            tracing::warn!(events = busy.len(), "not finished in time: rolled back, and somebody else's");
        }
        drop(busy);
        let _ = timeout(FAREWELL, connection.link.close()).await;
    }
}

async fn open<S: Source>(shared: &Shared, source: &S, terms: &Terms) -> Opened<S::Link> {
    let (link, deliveries) = source.open(terms).await?;
    let keeps = link.keeps();
    if keeps.is_some() {
        memory::suffices(shared, keeps).await?;
    }
    Ok((link, deliveries))
}

async fn give_back<L: Link>(link: &L, receipts: &[L::Receipt]) {
    if receipts.is_empty() {
        return;
    }
    match timeout(FAREWELL, link.give_back(receipts)).await {
        Ok(Ok(())) => {}
        Ok(Err(trouble)) => tracing::debug!(%trouble, "not given back; the broker finds out by itself"),
        Err(_) => tracing::debug!("not given back in time; the broker finds out by itself"),
    }
}

async fn receive<L: Link>(
    connection: Option<&mut Connection<L>>,
) -> Option<Result<Delivery<L::Receipt>, Trouble>> {
    match connection {
        Some(connection) => connection.deliveries.recv().await,
        None => std::future::pending().await,
    }
}

async fn opened<L: Link>(opening: Option<&mut Opening<'_, L>>) -> Opened<L> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}
