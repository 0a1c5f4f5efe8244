//! Marks the rows of a table while this relay keeps it.

use std::sync::Arc;
use std::time::Instant;

use postrider::outbox::{Marker, Mode, Outbox, Part};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;

use super::pace::{Pace, Pauses};
use super::{Locked, Trouble, WHOSE_LOCK, options};
use crate::settings::RelaySettings;

/// What those who mark a table hear of who keeps it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Word {
    /// This relay does.
    pub(super) is_held: bool,
    /// So many rows came into the log: they will have to be marked.
    pub(super) moved: u64,
}

/// The shares of those who mark a table. Where its keeper moves rows, that takes the server as long as marking them; where a trigger brings them, there
/// is time for two.
pub(super) fn parts(mode: Mode) -> Vec<Part> {
    match mode {
        Mode::Poll => vec![Part::WHOLE],
        Mode::Trigger => vec![Part { number: 0, of: 2 }, Part { number: 1, of: 2 }],
    }
}

/// Goes on until it is told to stop, and has marked by then what was settled.
pub(super) async fn mark(
    settings: Arc<RelaySettings>,
    outbox: Outbox,
    part: Part,
    mut word: watch::Receiver<Word>,
    tell: watch::Sender<Option<String>>,
    mut stop: watch::Receiver<bool>,
) {
    let mut pauses = Pauses::new();
    loop {
        tokio::select! {
            held = word.wait_for(|word| word.is_held) => if held.is_err() { return },
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let begun = Instant::now();
        match life(&settings, &outbox, part, &mut word, &tell, &mut stop).await {
            Ok(()) if *stop.borrow() => return,
            Ok(()) => {}
            Err(error) => {
                tell.send_replace(Some(format!("rows cannot be marked: {error}")));
                tracing::error!(outbox = outbox.name, %error, "rows of the outbox table cannot be marked; trying again");
            }
        }
        let _ = tokio::time::timeout(pauses.after(begun), stop.wait_for(|stop| *stop)).await;
    }
}

/// One connection's life, or the time for which the table is kept here.
async fn life(
    settings: &RelaySettings,
    outbox: &Outbox,
    part: Part,
    word: &mut watch::Receiver<Word>,
    tell: &watch::Sender<Option<String>>,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), Trouble> {
    let mut connection = PgConnection::connect_with(&options(settings)).await?;
    let Some(mut marker) = Marker::open(&mut connection, outbox, part).await? else {
        connection.close().await?;
        let _ = stop.wait_for(|stop| *stop).await;
        return Ok(());
    };
    let mut pace = Pace::new(outbox.interval);
    let mut held_up = Locked::default();
    while word.borrow_and_update().is_held {
        // What was settled before it was told is marked.
        let is_last = *stop.borrow();
        let begun = Instant::now();
        let round = marker.work(&mut connection).await?;
        tell.send_replace(marker.trouble().map(str::to_owned));
        if held_up.is_news(round.is_locked, begun) {
            tracing::warn!(
                outbox = outbox.name,
                remedy = WHOSE_LOCK,
                "somebody has rows of the outbox table locked, or what its triggers and foreign keys want; they are delivered, and are not \
                 marked until that transaction ends"
            );
        }
        if round.has_more {
            continue;
        }
        if is_last {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(pace.after(round.settled > 0, begun.elapsed())) => {}
            heard = word.changed() => {
                if heard.is_err() {
                    break;
                }
                pace.reset();
            }
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
    connection.close().await?;
    Ok(())
}
