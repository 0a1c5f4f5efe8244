//! One message: inbox, effect, commit, acknowledgement, in that order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use super::event::Event;
use super::source::{Delivery, Grave, Link, Trouble};
use super::telemetry::End;
use super::{Shared, attempts, letters};
use crate::consume::blame::{is_of_the_database, is_of_the_effect};
use crate::consume::words::{caught, in_words};
use crate::consume::{BoxError, Outcome, Tx};
use crate::log::Error;

/// Whoever freezes in the middle of its transaction must not keep the event from others for ever: they wait for it here. A shorter time of the
/// server's own stands.
const FIRST_TIME: &str = "select postrider.first_time($1, $2::text)
    from current_setting('idle_in_transaction_session_timeout') as own (time)
    cross join lateral set_config('idle_in_transaction_session_timeout',
        case when extract(epoch from own.time::interval) * 1000 between 1 and $3::integer then own.time else $3::integer::text end, true)";

/// A message in hand, with the event that it is.
pub(super) struct Held<L: Link> {
    pub(super) delivery: Delivery<L::Receipt>,
    pub(super) event: Event,
    /// Through which it came, and has to be settled.
    pub(super) link: Arc<L>,
    /// Which connection that is.
    pub(super) generation: u64,
    /// Its own, among all that this consumer has had.
    pub(super) number: u64,
    /// How often it was begun with, as far as that was counted.
    pub(super) begun: u32,
    /// Whether the next try has to be counted before it is made.
    pub(super) is_counted: bool,
    /// Whether it has been: the one before came to nothing over the database, and was none of its own.
    pub(super) is_begun: bool,
    /// What was said about the try before the one that was counted last.
    pub(super) reason: Option<String>,
}

/// What is to become of a message that was tried.
pub(super) enum Verdict {
    /// The broker knows that it is done with.
    Settled,
    /// It is tried again after this pause.
    Again(Duration),
    /// The broker was lost: it will come again by itself.
    Lost(Trouble),
}

/// Why a try did not end well.
enum Failure {
    /// The database, not the event, in words.
    Database(String),
    /// The event, as far as anybody knows, and when to try again, if the handler said so.
    Event(BoxError, Option<Duration>),
    Broker(Trouble),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if is_of_the_effect(&error) {
            Self::Event(error.into(), None)
        } else {
            Self::Database(error.to_string())
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self::Broker(trouble)
    }
}

/// Tries it once.
pub(super) async fn handle<L, H, T, E>(shared: &Shared, handler: &H, mut held: Held<L>) -> (Held<L>, Verdict)
where
    L: Link,
    H: AsyncFn(&mut Tx, Event<T>) -> Result<Outcome, E>,
    T: DeserializeOwned,
    E: Into<BoxError>,
{
    let event = &held.event;
    let span = tracing::info_span!(
        "event",
        consumer = shared.consumer,
        id = event.id,
        r#type = event.r#type,
        key = event.key,
        traceparent = event.headers.get("traceparent").and_then(|parent| parent.as_str()),
    );
    let begun = Instant::now();
    let verdict = async {
        match try_once(shared, handler, &mut held).await {
            Ok(end) => {
                shared.telemetry.ended(end);
                Verdict::Settled
            }
            Err(Failure::Broker(trouble)) => Verdict::Lost(trouble),
            Err(failure) => on_failure(shared, &mut held, failure).await,
        }
    }
    .instrument(span)
    .await;
    shared.telemetry.took(begun.elapsed());
    (held, verdict)
}

async fn try_once<L, H, T, E>(shared: &Shared, handler: &H, held: &mut Held<L>) -> Result<End, Failure>
where
    L: Link,
    H: AsyncFn(&mut Tx, Event<T>) -> Result<Outcome, E>,
    T: DeserializeOwned,
    E: Into<BoxError>,
{
    let Shared { pool, consumer, .. } = shared;
    if !(shared.filter)(&held.event) {
        held.link.acknowledge(&held.delivery.receipt).await?;
        return Ok(End::Filtered);
    }
    let id = held.event.id.clone();
    if held.is_counted {
        if !held.is_begun {
            (held.begun, held.reason) = attempts::begin(pool, consumer, &id).await?;
            held.is_begun = true;
        }
        if held.begun > shared.retry.max_attempts {
            let reason = held.reason.clone().unwrap_or_else(|| "the process ended each time".to_owned());
            return give_up(shared, held, &reason).await;
        }
    }
    let mut transaction = Tx(pool.begin().await?);
    if !is_first(shared, &mut transaction, &id).await? {
        return had_before(shared, held, transaction).await;
    }
    let event = match held.event.typed(held.begun.max(1)) {
        Ok(event) => event,
        Err(error) => {
            transaction.0.rollback().await?;
            return give_up(shared, held, &format!("the payload is not what the handler takes: {error}"))
                .await;
        }
    };
    let outcome = match caught(handler(&mut transaction, event)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            // The connection may be the reason, and then there is nothing left to roll back.
            let rolled_back = transaction.0.rollback().await;
            return Err(failure(error.into(), rolled_back));
        }
        Err(panic) => return Err(Failure::Event(panic.into(), None)),
    };
    match outcome {
        Outcome::Done => {
            commit(shared, held, transaction).await?;
            held.link.acknowledge(&held.delivery.receipt).await?;
            Ok(End::Done)
        }
        Outcome::Dead(reason) => {
            // Before the commit: after it, nobody would be told again that it is dead.
            bury(shared, held, &reason).await?;
            commit(shared, held, transaction).await?;
            held.link.discard(&held.delivery.receipt).await?;
            Ok(End::Dead)
        }
        Outcome::Retry(pause) => {
            transaction.0.rollback().await?;
            Err(Failure::Event("the handler asked for another attempt".into(), Some(pause)))
        }
    }
}

/// Whether the event has had no effect yet, as `inbox::first_time`.
async fn is_first(shared: &Shared, transaction: &mut Tx, id: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar(FIRST_TIME)
        .bind(&shared.consumer)
        .bind(id)
        .bind(i32::try_from(shared.lease.as_millis()).unwrap_or(i32::MAX))
        .fetch_one(&mut **transaction)
        .await
}

async fn commit<L: Link>(shared: &Shared, held: &Held<L>, mut transaction: Tx) -> Result<(), Failure> {
    if held.begun > 0 {
        attempts::end(&mut transaction, &shared.consumer, &held.event.id).await?;
    } else {
        // A handler may have gone on although a statement had failed. The server answers the COMMIT of that with a rollback, which is no
        // error; anything else it refuses.
        sqlx::query("select").execute(&mut *transaction).await?;
    }
    transaction.0.commit().await?;
    (shared.observe)(&held.event);
    Ok(())
}

async fn had_before<L: Link>(shared: &Shared, held: &Held<L>, mut transaction: Tx) -> Result<End, Failure> {
    if held.begun > 0 {
        attempts::end(&mut transaction, &shared.consumer, &held.event.id).await?;
    }
    transaction.0.commit().await?;
    held.link.acknowledge(&held.delivery.receipt).await?;
    Ok(End::Duplicate)
}

/// Dead without, or after, its last try. It is in the inbox, too: a copy of it has no other fate.
async fn give_up<L: Link>(shared: &Shared, held: &Held<L>, reason: &str) -> Result<End, Failure> {
    let mut transaction = Tx(shared.pool.begin().await?);
    if !is_first(shared, &mut transaction, &held.event.id).await? {
        return had_before(shared, held, transaction).await;
    }
    bury(shared, held, reason).await?;
    attempts::end(&mut transaction, &shared.consumer, &held.event.id).await?;
    transaction.0.commit().await?;
    held.link.discard(&held.delivery.receipt).await?;
    Ok(End::Dead)
}

async fn bury<L: Link>(shared: &Shared, held: &Held<L>, reason: &str) -> Result<(), Trouble> {
    tracing::warn!(reason, attempts = held.begun, "the event is given up and kept with the dead letters");
    let (consumer, event_id) = (shared.consumer.as_str(), Some(held.event.id.as_str()));
    let grave = Grave { consumer, event_id, reason, attempts: held.begun.max(1) };
    letters::bury(shared, &*held.link, &held.delivery.message, &grave).await
}

/// What is wrong, the event or the database.
fn failure(error: BoxError, rolled_back: sqlx::Result<()>) -> Failure {
    match error.downcast::<sqlx::Error>() {
        Ok(error) => match Error::from(*error) {
            error if error.is_transient() => Failure::Database(error.to_string()),
            error => Failure::Event(error.into(), None),
        },
        Err(wrapped) if is_of_the_database(&*wrapped) => Failure::Database(in_words(&*wrapped)),
        Err(error) => match rolled_back {
            Ok(()) => Failure::Event(error, None),
            Err(lost) => lost.into(),
        },
    }
}

async fn on_failure<L: Link>(shared: &Shared, held: &mut Held<L>, failure: Failure) -> Verdict {
    match failure {
        Failure::Broker(trouble) => Verdict::Lost(trouble),
        Failure::Database(error) => {
            tracing::warn!(%error, "the database did not do its part; the event is tried again");
            Verdict::Again(rand::random_range(Duration::from_millis(100)..Duration::from_secs(2)))
        }
        Failure::Event(error, pause) => match count(shared, held, &*error, pause).await {
            Ok(verdict) => verdict,
            Err(Failure::Broker(trouble)) => Verdict::Lost(trouble),
            Err(Failure::Database(error)) => {
                tracing::warn!(%error, "a failed attempt could not be counted");
                Verdict::Again(Duration::from_secs(1))
            }
            Err(Failure::Event(..)) => Verdict::Again(Duration::from_secs(1)),
        },
    }
}

async fn count<L: Link>(
    shared: &Shared,
    held: &mut Held<L>,
    error: &(dyn std::error::Error + Send + Sync + 'static),
    pause: Option<Duration>,
) -> Result<Verdict, Failure> {
    let Shared { pool, consumer, retry, telemetry, .. } = shared;
    telemetry.ended(End::Failed);
    let reason = in_words(error);
    if !std::mem::replace(&mut held.is_counted, true) {
        held.begun = attempts::begin(pool, consumer, &held.event.id).await?.0;
    }
    attempts::fail(pool, consumer, &held.event.id, &reason).await?;
    held.is_begun = false;
    if held.begun >= retry.max_attempts {
        telemetry.ended(give_up(shared, held, &reason).await?);
        return Ok(Verdict::Settled);
    }
    let pause = pause.unwrap_or_else(|| retry.pause(held.begun)).min(super::LONGEST_PAUSE);
    tracing::warn!(attempts = held.begun, reason, ?pause, "an event failed and is tried again");
    Ok(Verdict::Again(pause))
}
