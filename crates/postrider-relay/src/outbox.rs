//! Keeps adopted outbox tables while a relay runs: one task for each, of which one among all relays works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::session;
use postrider::outbox::{self, Error, Keeper, Mode, Outbox};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::settings::RelaySettings;

/// Between two lives.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// For the last marks and the lease, when it is told to stop.
const LAST: Duration = Duration::from_secs(2);

/// A table that is kept.
pub(crate) struct Kept {
    stop: watch::Sender<bool>,
    has_looked: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Kept {
    /// Begins to keep a table, and goes on until it is told to stop.
    pub(crate) fn start(settings: &Arc<RelaySettings>, outbox: &Outbox) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (looked, has_looked) = watch::channel(false);
        let task = tokio::spawn(keep(Arc::clone(settings), outbox.clone(), stopped, looked));
        Self { stop, has_looked, task }
    }

    /// Comes when there was nothing more to move, or another relay keeps the table.
    pub(crate) fn has_looked(&self) -> impl Future<Output = ()> + use<> {
        let mut has_looked = self.has_looked.clone();
        async move { drop(has_looked.wait_for(|looked| *looked).await) }
    }

    /// Marks what is settled by now, and hands the table back.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(LAST, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    settings: Arc<RelaySettings>,
    outbox: Outbox,
    mut stop: watch::Receiver<bool>,
    looked: watch::Sender<bool>,
) {
    let mut pause = PAUSES.0;
    while !*stop.borrow_and_update() {
        let begun = Instant::now();
        if let Err(error) = life(&settings, &outbox, &mut stop, &looked).await {
            tracing::error!(outbox = outbox.name, %error, "the outbox table cannot be kept; trying again");
        }
        if begun.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
        pause = (2 * pause).min(PAUSES.1);
    }
}

/// What a table's life can end by.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Outbox(#[from] Error),
    #[error("{problem}: {remedy}")]
    Complaint { problem: String, remedy: String },
    #[error("the database cannot be reached: {0}")]
    Database(#[from] sqlx::Error),
}

fn options(settings: &RelaySettings) -> PgConnectOptions {
    session::well_mannered(settings.database.last().clone().application_name("postrider (outbox)"))
}

/// One connection's life.
async fn life(
    settings: &RelaySettings,
    outbox: &Outbox,
    stop: &mut watch::Receiver<bool>,
    looked: &watch::Sender<bool>,
) -> Result<(), Trouble> {
    let mut connection = PgConnection::connect_with(&options(settings)).await?;
    for complaint in outbox::inspect(&mut connection, outbox).await? {
        let (problem, remedy) = (complaint.problem, complaint.remedy);
        if complaint.is_fatal {
            return Err(Trouble::Complaint { problem, remedy });
        }
        tracing::warn!(outbox = outbox.name, problem, remedy, "the outbox table lacks something");
    }
    if outbox.mode == Mode::Poll && !has_sinks(&mut connection, settings, stop).await? {
        return Ok(());
    }
    let mut listener = listener(settings, outbox).await?;
    let mut keeper = Keeper::open(&mut connection, outbox, &settings.name, settings.log.lease).await?;
    let mut pace = Pace::new(outbox.interval);
    let mut is_claimed = false;
    loop {
        let begun = Instant::now();
        let worked = match keeper.work(&mut connection).await {
            Err(claimed @ Error::Claimed { .. }) => {
                if !std::mem::replace(&mut is_claimed, true) {
                    tracing::warn!(
                        outbox = outbox.name,
                        reason = %claimed,
                        "another poller is at work on the outbox table; nothing is taken until it is stopped"
                    );
                }
                outbox::Worked::default()
            }
            worked => {
                is_claimed = false;
                worked?
            }
        };
        if !worked.has_more && !is_claimed {
            looked.send_replace(true);
        }
        if *stop.borrow() && !worked.has_more {
            keeper.close(&mut connection).await?;
            connection.close().await?;
            return Ok(());
        }
        let pause = pace.after(&worked, begun.elapsed().saturating_sub(worked.aside));
        if worked.has_more {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            heard = heard(&mut listener) => {
                heard?;
                pace.reset();
            }
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// Waits until the log knows every sink: one that begins with what comes after it is born would miss what is moved before. False if it
/// was told to stop meanwhile.
async fn has_sinks(
    connection: &mut PgConnection,
    settings: &RelaySettings,
    stop: &mut watch::Receiver<bool>,
) -> Result<bool, sqlx::Error> {
    let names: Vec<&str> = settings.sinks.iter().map(|sink| sink.name.as_str()).collect();
    while !*stop.borrow_and_update() {
        let known: i64 = sqlx::query_scalar("select count(*) from postrider.sinks where name = any ($1)")
            .bind(&names)
            .fetch_one(&mut *connection)
            .await?;
        if usize::try_from(known).is_ok_and(|known| known == names.len()) {
            return Ok(true);
        }
        let _ = tokio::time::timeout(Duration::from_millis(50), stop.wait_for(|stop| *stop)).await;
    }
    Ok(false)
}

/// How long it rests: shortly after something happened, longer and longer while nothing does.
struct Pace {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pace {
    fn new((min, max): (Duration, Duration)) -> Self {
        Self { min, max, next: min }
    }

    fn reset(&mut self) {
        self.next = self.min;
    }

    fn after(&mut self, worked: &outbox::Worked, took: Duration) -> Duration {
        let is_busy = worked.moved + worked.settled > 0;
        let pause = if is_busy { self.min } else { self.next };
        self.next = (2 * pause).min(self.max).max(self.min);
        // Where looking takes long, because much waits for a sink, it is looked less often; where something came of it, the time
        // went into that.
        pause.max(if is_busy { took } else { 4 * took })
    }
}

async fn listener(settings: &RelaySettings, outbox: &Outbox) -> Result<Option<PgListener>, sqlx::Error> {
    let Some(channel) = outbox.channel().filter(|_| outbox.mode == Mode::Poll) else { return Ok(None) };
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options(settings));
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(channel).await?;
    Ok(Some(listener))
}

/// Waits for a notification. It is told of a lost connection, which is connected anew by the listener itself.
async fn heard(listener: &mut Option<PgListener>) -> Result<(), sqlx::Error> {
    match listener {
        Some(listener) => listener.try_recv().await.map(|_| ()),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: outbox::Worked =
        outbox::Worked { stands_by: false, moved: 0, settled: 0, has_more: false, aside: Duration::ZERO };

    #[test]
    fn pauses_grow_while_nothing_happens_and_begin_anew_when_something_does() {
        let millis = Duration::from_millis;
        let mut pace = Pace::new((millis(250), millis(2000)));
        let mut rest = |worked: &outbox::Worked| pace.after(worked, Duration::ZERO).as_millis();
        assert_eq!([0; 5].map(|_| rest(&NOTHING)), [250, 500, 1000, 2000, 2000]);
        for busy in [outbox::Worked { moved: 1, ..NOTHING }, outbox::Worked { settled: 1, ..NOTHING }] {
            assert_eq!([rest(&busy), rest(&busy), rest(&NOTHING), rest(&NOTHING)], [250, 250, 500, 1000]);
        }
        pace.reset();
        assert_eq!(pace.after(&NOTHING, Duration::ZERO), millis(250), "somebody has notified");
        assert_eq!(pace.after(&NOTHING, millis(1000)), millis(4000), "looking takes long");
        let busy = outbox::Worked { settled: 1, ..NOTHING };
        assert_eq!(pace.after(&busy, millis(1000)), millis(1000), "and something comes of it");
    }
}
