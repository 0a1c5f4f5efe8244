//! The database's side of the wake-up protocol: tickets, hints, and a connection that listens.

use std::fmt;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection};
use tokio::time::Instant;
use uuid::Uuid;

use super::error::Result;
use super::progress::parse_xid;

const CHANNEL: &str = "postrider";
/// Said by a reader that hands its lanes back: whoever stands by need not wait for its next heartbeat to find them.
const FREED: &str = "lanes";
const SELF_TEST: Duration = Duration::from_secs(1);

/// Whether producers are asked to wake this reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hint {
    /// Yes, unless `max_prepared_transactions > 0`: a transaction that has notified cannot be prepared, and a user's PREPARE
    /// must never fail because of us.
    #[default]
    Auto,
    /// Yes, whatever the server's settings are.
    Force,
    /// No: polling alone.
    Off,
}

/// Why a reader polls although it might have been woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// The operator said so.
    Chosen,
    /// `max_prepared_transactions > 0`.
    PreparedTransactions,
    /// LISTEN hears nothing: a pooler in transaction mode is in between.
    Deaf,
    /// The listening connection was lost and is not back yet.
    Lost,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "the hint is switched off",
            Self::PreparedTransactions => {
                "max_prepared_transactions is above 0, and NOTIFY would break PREPARE TRANSACTION"
            }
            Self::Deaf => "LISTEN hears nothing: a pooler in transaction mode is in between",
            Self::Lost => "the listening connection was lost and could not be opened again yet",
        })
    }
}

/// A listening connection, if there is a use for one. Losing it costs promptness only: reading goes on by looking, and the connection
/// is opened again when it can be.
pub struct Bell {
    channel: &'static str,
    options: PgConnectOptions,
    ear: Ear,
    freed: bool,
}

enum Ear {
    Listening(PgListener),
    Silent(Silence),
    Lost { try_at: Instant, failures: u32 },
}

/// What waiting brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A producer's notification with its ticket.
    Ticket(u64),
    /// The time is over.
    Nothing,
    /// The listening connection broke: notifications may have been missed.
    Broken,
}

impl Bell {
    /// Listens, and makes sure by a notification to itself that LISTEN is not deaf.
    pub async fn hang(options: &PgConnectOptions, connection: &mut PgConnection, hint: Hint) -> Result<Self> {
        Self::hang_on(CHANNEL, options, connection, hint).await
    }

    /// The same, for those who are rung on another channel.
    pub(crate) async fn hang_on(
        channel: &'static str,
        options: &PgConnectOptions,
        connection: &mut PgConnection,
        hint: Hint,
    ) -> Result<Self> {
        let options = options.clone().application_name("postrider (listening)");
        let bell = |ear| Self { channel, options: options.clone(), ear, freed: false };
        if hint == Hint::Off {
            return Ok(bell(Ear::Silent(Silence::Chosen)));
        }
        let prepared: i32 =
            sqlx::query_scalar("select current_setting('max_prepared_transactions')::integer")
                .fetch_one(&mut *connection)
                .await?;
        if hint == Hint::Auto && prepared > 0 {
            return Ok(bell(Ear::Silent(Silence::PreparedTransactions)));
        }
        let Ok(mut listener) = listen(channel, &options).await else { return Ok(bell(Ear::lost(1))) };
        Ok(bell(match hears_itself(channel, &mut listener, connection).await? {
            Some(true) => Ear::Listening(listener),
            Some(false) => Ear::Silent(Silence::Deaf),
            None => Ear::lost(1),
        }))
    }

    /// Why it does not ring, if it does not.
    pub fn silence(&self) -> Option<Silence> {
        match self.ear {
            Ear::Listening(_) => None,
            Ear::Silent(silence) => Some(silence),
            Ear::Lost { .. } => Some(Silence::Lost),
        }
    }

    /// Whether somebody has handed lanes back since this was asked last.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Makes sure that it still hears: a connection that nothing passes for long may be gone without a word. What was rung meanwhile
    /// is not kept, so a look has to follow.
    pub async fn test(&mut self, connection: &mut PgConnection) -> Result<()> {
        if let Ear::Listening(listener) = &mut self.ear
            && hears_itself(self.channel, listener, connection).await? != Some(true)
        {
            self.ear = Ear::lost(0);
        }
        Ok(())
    }

    /// Waits for a ticket. If several came, the highest speaks for all of them.
    pub async fn wait(&mut self, longest: Duration) -> Result<Heard> {
        let deadline = Instant::now() + longest;
        let listener = match &mut self.ear {
            Ear::Listening(listener) => listener,
            Ear::Silent(_) => {
                tokio::time::sleep_until(deadline).await;
                return Ok(Heard::Nothing);
            }
            Ear::Lost { try_at, failures } => {
                if longest.is_zero() || *try_at >= deadline {
                    tokio::time::sleep_until(deadline).await;
                    return Ok(Heard::Nothing);
                }
                tokio::time::sleep_until(*try_at).await;
                let failures = *failures + 1;
                // Whatever comes of it, and if this is cancelled too: not again at once.
                self.ear = Ear::lost(failures);
                match listen(self.channel, &self.options).await {
                    Ok(listener) => self.ear = Ear::Listening(listener),
                    Err(error) => {
                        tracing::debug!(%error, failures, "the listening connection cannot be opened");
                    }
                }
                // What was rung before it listened is gone.
                return Ok(Heard::Broken);
            }
        };
        let mut highest = None;
        loop {
            // What is there already, without a timer: one of zero still takes a millisecond or two, because timers are rounded up to
            // the next one. Half of the time from a commit to its event in hand went there.
            let ready = tokio::select! {
                biased;
                heard = listener.try_recv() => Some(heard),
                () = std::future::ready(()) => None,
            };
            let heard = match ready {
                Some(heard) => heard,
                // No more waiting once a ticket came.
                None if highest.is_some() || longest.is_zero() => {
                    return Ok(highest.map_or(Heard::Nothing, Heard::Ticket));
                }
                None => match tokio::time::timeout_at(deadline, listener.try_recv()).await {
                    Ok(heard) => heard,
                    Err(_elapsed) => return Ok(Heard::Nothing),
                },
            };
            let Ok(Some(notification)) = heard else {
                self.ear = Ear::lost(0);
                return Ok(Heard::Broken);
            };
            if notification.payload() == FREED {
                self.freed = true;
                if highest.is_none() {
                    return Ok(Heard::Nothing);
                }
            } else if let Ok(ticket) = notification.payload().parse() {
                highest = highest.max(Some(ticket));
            }
        }
    }
}

impl Ear {
    /// After so many attempts to open it again.
    fn lost(failures: u32) -> Self {
        const FIRST: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(30);
        let pause = match failures {
            0 => Duration::ZERO,
            _ => FIRST.saturating_mul(1_u32 << failures.min(16)).min(LONGEST),
        };
        Self::Lost { try_at: Instant::now() + pause, failures }
    }
}

async fn listen(channel: &str, options: &PgConnectOptions) -> Result<PgListener> {
    /// A pool goes on trying for so long where the server has no room for another connection.
    const PATIENCE: Duration = Duration::from_secs(2);
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options.clone().disable_statement_logging());
    let mut listener = PgListener::connect_with(&pool).await?;
    // A lost listener must be noticed, not silently replaced: what was notified in between is gone.
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

/// `None` if the listening connection was lost over it.
async fn hears_itself(
    channel: &str,
    listener: &mut PgListener,
    connection: &mut PgConnection,
) -> Result<Option<bool>> {
    // A notification of ours would fail if the queue is full, and reading does not depend on it. Nobody arms meanwhile.
    if !may_arm(connection).await? {
        return Ok(Some(true));
    }
    let word = Uuid::now_v7().to_string();
    sqlx::query("select pg_notify($1, $2)").bind(channel).bind(&word).execute(connection).await?;
    let heard = async {
        loop {
            match listener.try_recv().await {
                Ok(Some(notification)) if notification.payload() == word => return Some(true),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    };
    Ok(tokio::time::timeout(SELF_TEST, heard).await.unwrap_or(Some(false)))
}

/// Tells whoever stands by that there are lanes to take, when the caller's transaction commits. A full queue would fail that commit.
pub async fn say_freed(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("select pg_notify($1, $2) where pg_notification_queue_usage() < 0.75")
        .bind(CHANNEL)
        .bind(FREED)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether a ticket may be taken now: a full notification queue would fail the user's COMMIT.
pub async fn may_arm(connection: &mut PgConnection) -> Result<bool> {
    Ok(sqlx::query_scalar("select pg_notification_queue_usage() <= 0.5").fetch_one(connection).await?)
}

/// Takes the next ticket, good for `sleep`. Producers stop heeding it afterwards, so that a reader that died asleep does not make
/// them notify for ever; a longer sleep of another reader stands, unless a clock jump left it far in the future.
pub async fn take_ticket(connection: &mut PgConnection, sleep: Duration) -> Result<u64> {
    let ticket: i64 = sqlx::query_scalar("select postrider.take_ticket($1)")
        .bind(sleep.as_secs_f64())
        .fetch_one(connection)
        .await?;
    Ok(ticket.unsigned_abs())
}

/// An xid of our own, younger than the ticket: a transaction of its own, because `nextval` takes its xid before it draws.
pub async fn take_xid(connection: &mut PgConnection) -> Result<u64> {
    let xid: String = sqlx::query_scalar("select pg_current_xact_id()::text").fetch_one(connection).await?;
    parse_xid(&xid)
}

/// Sets `disarmed` to at least `ticket`, under a lock that only readers take. Never above what was drawn: anybody can notify anything.
pub async fn disarm(connection: &mut PgConnection, ticket: u64) -> Result<()> {
    sqlx::query("select postrider.disarm($1)")
        .bind(i64::try_from(ticket).unwrap_or(i64::MAX))
        .execute(connection)
        .await?;
    Ok(())
}
