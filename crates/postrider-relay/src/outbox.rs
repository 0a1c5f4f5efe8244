//! Keeps adopted outbox tables while a relay runs: each by a few tasks, of which those of one among all relays work.

mod marking;
mod pace;

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::session;
use postrider::outbox::{self, Error, Keeper, Mode, Outbox};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::marking::Word;
use self::pace::{Pace, Pauses};
use crate::settings::RelaySettings;

/// For the last marks and the lease, when it is told to stop.
const LAST: Duration = Duration::from_secs(2);
/// From when on it is said that somebody has something locked.
const PATIENCE: Duration = Duration::from_secs(4);
const WHOSE_LOCK: &str = "pg_stat_activity and pg_locks show who it is: end that transaction";

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
    let (word, heard) = watch::channel(Word::default());
    let mut markers: JoinSet<()> = JoinSet::new();
    let mut troubles = Troubles::default();
    for part in marking::parts(outbox.mode) {
        let (tell, told) = watch::channel(None);
        troubles.of_markers.push(told);
        let (settings, outbox) = (Arc::clone(&settings), outbox.clone());
        markers.spawn(marking::mark(settings, outbox, part, heard.clone(), tell, stop.clone()));
    }
    let mut pauses = Pauses::new();
    while !*stop.borrow_and_update() {
        let begun = Instant::now();
        match life(&settings, &outbox, &mut stop, &looked, &word, &mut troubles).await {
            Ok(kept) => {
                // The table is handed back when the last mark is made.
                while markers.join_next().await.is_some() {}
                if let Some((keeper, mut connection)) = kept {
                    let closed = keeper.close(&mut connection).await;
                    if let Err(error) = closed {
                        tracing::warn!(outbox = outbox.name, %error, "the outbox table could not be handed back");
                    }
                }
                return;
            }
            Err(error) => {
                word.send_modify(|word| word.is_held = false);
                troubles.of_life = Some(error.to_string());
                tracing::error!(outbox = outbox.name, %error, "the outbox table cannot be kept; trying again");
            }
        }
        let _ = tokio::time::timeout(pauses.after(begun), stop.wait_for(|stop| *stop)).await;
    }
}

/// What operators are told of with the table's lease.
#[derive(Default)]
struct Troubles {
    /// By which its life ended, until a round succeeds.
    of_life: Option<String>,
    of_markers: Vec<watch::Receiver<Option<String>>>,
}

impl Troubles {
    fn words(&self) -> Option<String> {
        let of_markers = self.of_markers.iter().filter_map(|told| told.borrow().clone());
        let all: Vec<String> = self.of_life.iter().cloned().chain(of_markers).collect();
        (!all.is_empty()).then(|| all.join("; "))
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

/// One connection's life. It ends when it is told to stop, with what is to be handed back then.
async fn life(
    settings: &RelaySettings,
    outbox: &Outbox,
    stop: &mut watch::Receiver<bool>,
    looked: &watch::Sender<bool>,
    word: &watch::Sender<Word>,
    troubles: &mut Troubles,
) -> Result<Option<(Keeper, PgConnection)>, Trouble> {
    let mut connection = PgConnection::connect_with(&options(settings)).await?;
    for complaint in outbox::inspect(&mut connection, outbox).await? {
        let (problem, remedy) = (complaint.problem, complaint.remedy);
        if complaint.is_fatal {
            return Err(Trouble::Complaint { problem, remedy });
        }
        tracing::warn!(outbox = outbox.name, problem, remedy, "the outbox table lacks something");
    }
    if outbox.mode == Mode::Poll && !has_sinks(&mut connection, settings, stop).await? {
        return Ok(None);
    }
    let mut listener = listener(settings, outbox).await?;
    let mut keeper = Keeper::open(&mut connection, outbox, &settings.name, settings.log.lease).await?;
    let mut pace = Pace::new(outbox.interval);
    let mut is_claimed = false;
    let mut stands_by_since = None;
    let mut held_up = Locked::default();
    loop {
        let begun = Instant::now();
        keeper.tell(troubles.words().as_deref());
        let worked = match keeper.work(&mut connection).await {
            Err(claimed @ Error::Claimed { .. }) => {
                troubles.of_life = Some(claimed.to_string());
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
                let worked = worked?;
                troubles.of_life = None;
                worked
            }
        };
        word.send_if_modified(|word| {
            let before = std::mem::replace(&mut word.is_held, !worked.stands_by);
            word.moved += worked.moved;
            worked.moved > 0 || before != word.is_held
        });
        if held_up.is_news(worked.is_locked, begun) {
            tracing::warn!(
                outbox = outbox.name,
                remedy = WHOSE_LOCK,
                "somebody has the outbox table locked, rows whose claim is stale, or what the table's triggers and foreign keys want; \
                 nothing is taken until that transaction ends"
            );
        }
        stands_by_since = worked.stands_by.then(|| stands_by_since.unwrap_or(begun));
        // One that has died keeps the table until its lease is over.
        let is_left_to_others = stands_by_since.is_some_and(|since| since.elapsed() > settings.log.lease);
        if !worked.has_more && !is_claimed && !worked.is_locked && (is_left_to_others || !worked.stands_by) {
            looked.send_replace(true);
        }
        if *stop.borrow() && !worked.has_more {
            return Ok(Some((keeper, connection)));
        }
        let pause = pace.after(worked.moved > 0, begun.elapsed().saturating_sub(worked.aside));
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

/// Since when somebody has had something locked, and whether that was said.
#[derive(Default)]
struct Locked {
    since: Option<Instant>,
    is_told: bool,
}

impl Locked {
    /// Whether it is to be said now.
    fn is_news(&mut self, is_locked: bool, now: Instant) -> bool {
        if !is_locked {
            *self = Self::default();
            return false;
        }
        self.since.get_or_insert(now).elapsed() > PATIENCE && !std::mem::replace(&mut self.is_told, true)
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
