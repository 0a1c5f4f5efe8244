//! What a reader waits for when it may not read.

use std::time::{Duration, Instant};

use super::Driver;
use crate::log::error::Result;
use crate::log::link::Link;
use crate::log::settling::end_of;

impl Driver {
    /// Waits until the reader takes the batch, asks for something else, or the lease wants renewing.
    pub(super) async fn hand_over(&mut self) -> Result<()> {
        let duty = self.link.as_ref().map(Link::next_duty).unwrap_or_default();
        tokio::select! {
            permit = self.batches.reserve() => match (permit, self.ready.take()) {
                (Ok(permit), Some(batch)) => permit.send(Ok(batch)),
                // Closing: what is not taken stays unsettled.
                _ => self.pending = self.commands.recv().await,
            },
            command = self.commands.recv() => self.pending = command,
            ended = end_of(&mut self.settling) => self.ended = Some(ended),
            // For the next step.
            Ok(()) = self.report.changed() => self.report.mark_changed(),
            () = tokio::time::sleep(duty) => {}
        }
        Ok(())
    }

    /// Waits until something of what is in memory is settled, or there is something else to do.
    pub(super) async fn wait_for_room(&mut self) -> Result<()> {
        let duty = self.link.as_ref().map(Link::next_duty).unwrap_or_default();
        tokio::select! {
            () = self.room.until_free() => {}
            command = self.commands.recv() => self.pending = command,
            ended = end_of(&mut self.settling) => self.ended = Some(ended),
            // For the next step.
            Ok(()) = self.report.changed() => self.report.mark_changed(),
            () = tokio::time::sleep(duty) => {}
        }
        Ok(())
    }

    /// Waits for its turn to read what is large. Meanwhile the other lanes are looked at now and then: it may be a while.
    pub(super) async fn wait_for_turn(&mut self) -> Result<()> {
        const BESIDE: Duration = Duration::from_secs(1);
        let Some(turn) = &self.turn else { return Ok(()) };
        let duty = self.link.as_ref().map(Link::next_duty).unwrap_or_default();
        let until = *self.resting_until.get_or_insert_with(|| Instant::now() + BESIDE);
        tokio::select! {
            () = turn.may_come() => {}
            command = self.commands.recv() => self.pending = command,
            ended = end_of(&mut self.settling) => self.ended = Some(ended),
            // For the next step.
            Ok(()) = self.report.changed() => self.report.mark_changed(),
            () = tokio::time::sleep_until(until.into()) => self.only_large = false,
            () = tokio::time::sleep(duty) => {}
        }
        Ok(())
    }

    /// A settling under the old epoch must not meet a new one: the lanes are not shared out anew before its end, but they are kept.
    pub(super) async fn outlast_settling(&mut self) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let lease = self.options.lease;
        let left = link.lease_ends().saturating_duration_since(Instant::now());
        tokio::select! {
            ended = end_of(&mut self.settling) => self.ended = Some(ended),
            () = tokio::time::sleep(left.saturating_sub(lease / 2)), if !left.is_zero() => {
                link.renew(&self.options, self.holder.reader).await?;
            }
        }
        Ok(())
    }
}
