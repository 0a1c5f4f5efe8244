//! What a reader does while there is nothing to read.

use std::time::{Duration, Instant};

use super::Driver;
use crate::log::bell::{self, Heard, Silence};
use crate::log::error::Result;
use crate::log::settling::end_of;
use crate::log::wake::{Event, Sleeper};

/// After work a reader looks this often at the shortest interval before it sleeps or slows down: work tends to follow work, and
/// taking a ticket costs a commit.
const SHORT_PAUSES: u32 = 16;

/// Shorter pauses are made to last as long as they should: timers are rounded up to the next millisecond, which makes two of one.
const BRIEF: Duration = Duration::from_millis(5);

/// A thread sleeps as exactly as the system can.
async fn exactly(pause: Duration) {
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(pause)).await;
}

impl Driver {
    /// Nothing was there: a few short pauses, then sleep, or pause for longer and longer.
    pub(super) async fn after_nothing(&mut self) -> Result<()> {
        let pause = self.pause();
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        let Some(link) = &mut self.link else { return Ok(()) };
        // The first look that finds nothing is made again at once: at 1,000 commits per second the next one is there by then.
        if link.sleeper.is_armed() || self.idle_rounds == 1 {
            return Ok(());
        }
        let can_sleep = link.bell.silence().is_none() && self.idle_rounds > SHORT_PAUSES;
        if can_sleep && bell::may_arm(&mut link.connection).await? {
            link.sleeper.doze();
            return Ok(());
        }
        self.rest(pause).await
    }

    /// The pause after so many rounds without a record.
    pub(super) fn pause(&self) -> Duration {
        /// A user who prepares transactions gets no hint, so polling must not become slow.
        const LONGEST_WITHOUT_HINT: Duration = Duration::from_millis(100);
        let (shortest, longest) = self.options.idle;
        let silence = self.link.as_ref().and_then(|link| link.bell.silence());
        let longest = match silence {
            Some(Silence::PreparedTransactions) => longest.min(LONGEST_WITHOUT_HINT),
            _ => longest,
        };
        shortest.saturating_mul(1_u32 << self.idle_rounds.saturating_sub(SHORT_PAUSES).min(16)).min(longest)
    }

    /// Waits, listening, but never past the next heartbeat or a command.
    pub(super) async fn rest(&mut self, longest: Duration) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let until = *self.resting_until.get_or_insert_with(|| Instant::now() + longest);
        let rest = until.saturating_duration_since(Instant::now()).min(link.next_duty());
        // A bell that is being hung anew takes longer than such a pause, and would never be done.
        let is_brief = rest < BRIEF && link.bell.silence() != Some(Silence::Lost);
        let heard = tokio::select! {
            heard = link.bell.wait(rest) => heard?,
            () = exactly(rest), if is_brief => Heard::Nothing,
            command = self.commands.recv() => {
                self.pending = command;
                return Ok(());
            }
            ended = end_of(&mut self.settling) => {
                self.ended = Some(ended);
                return Ok(());
            }
            Ok(()) = self.report.changed() => {
                self.report.mark_changed();
                return Ok(());
            }
        };
        let event = match heard {
            Heard::Ticket(ticket) => Event::Notified(ticket),
            // A heartbeat in the middle of a sleep does not end it.
            Heard::Nothing if Instant::now() < until => return Ok(()),
            Heard::Nothing => Event::TimedOut,
            // What was rung in between is gone: begin anew, with a look.
            Heard::Broken => {
                self.resting_until = None;
                self.idle_rounds = 0;
                link.sleeper = Sleeper::default();
                return Ok(());
            }
        };
        self.resting_until = None;
        if event != Event::TimedOut {
            self.idle_rounds = 0;
            self.rung = true;
        }
        link.sleeper.on(event);
        Ok(())
    }
}
