//! What a reader does to read: a round, and what follows from what it found.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Driver;
use crate::log::bell::Heard;
use crate::log::error::Result;
use crate::log::link::Found;
use crate::log::reader::Batch;
use crate::log::settling::Meanwhile;
use crate::log::turns::Turn;
use crate::log::wake::Event;

impl Driver {
    /// Reads a round, and hands over or rests after it.
    pub(super) async fn look(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.resting_until = None;
        let Some((pages, xmin)) = self.read().await? else { return Ok(()) };
        self.fit_page(begun.elapsed());
        let Some(link) = &mut self.link else { return Ok(()) };
        let found = !pages.is_empty();
        // Who has a large event to read does not sleep.
        link.sleeper.on(Event::Looked { found: found || link.has_large(), xmin });
        if found {
            // A busy reader never rests, so it has to hear here that somebody rang, or they would ring on.
            if let Heard::Ticket(ticket) = link.bell.wait(Duration::ZERO).await? {
                link.sleeper.on(Event::Notified(ticket));
            }
            self.on_found(pages);
            return Ok(());
        }
        if link.has_large() {
            return Ok(());
        }
        self.after_nothing().await
    }

    /// Reads a round. `None` while too few standbys have what was read.
    pub(super) async fn read(&mut self) -> Result<Option<(Found, u64)>> {
        let may_be_large = self.turn.as_ref().is_some_and(Turn::has_come);
        let Some(link) = &mut self.link else { return Ok(None) };
        let mut meanwhile = Meanwhile {
            holder: self.holder,
            patience: self.options.patience,
            lease: self.options.lease,
            failures: &mut self.unsettled,
            commands: &mut self.commands,
            pending: &mut self.pending,
            settling: &mut self.settling,
            ended: &mut self.ended,
            state: &self.state,
        };
        let looked = link.look(&self.options, &mut self.pages, may_be_large, &mut meanwhile).await?;
        let Some((pages, xmin)) = looked else {
            self.trouble = Some(self.too_few_standbys());
            return Ok(None);
        };
        self.trouble = None;
        self.only_large = pages.is_empty();
        if !link.has_large() && (pages.is_empty() || !may_be_large) {
            self.turn = None;
        }
        Ok(Some((pages, xmin)))
    }

    pub(super) fn on_found(&mut self, pages: Found) {
        let Some(link) = &self.link else { return };
        self.idle_rounds = 0;
        // What is still to be read needs its turn, what was read keeps it.
        let turn = if link.has_large() { None } else { self.turn.take() };
        let room = self.room.hold(pages.values().flat_map(|(_, page)| &page.records), turn);
        self.ready = Some(Batch { link: link.id, pages, read_at: Instant::now(), _room: room });
    }

    /// Pages that can be read in a fraction of the time there is.
    fn fit_page(&mut self, took: Duration) {
        self.slow_rounds = 0;
        let limit = self.options.patience.min(self.options.lease);
        if took > limit / 2 {
            self.options.page = (self.options.page / 2).max(1);
        } else if took < limit / 8 {
            self.options.page = self.options.page.saturating_mul(2).min(self.usual_page);
        }
    }

    fn too_few_standbys(&self) -> Arc<str> {
        let standbys = self.options.standbys;
        Arc::from(format!(
            "events wait until {standbys} standbys have them, and fewer do (see pg_stat_replication; the role needs \
             pg_read_all_stats to see them)"
        ))
    }
}
