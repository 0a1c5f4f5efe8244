//! Lanes come and go: what was read of them is forgotten, given back, and remembered when it is read again.

use postrider::log::Batch;

use super::Pipeline;
use super::remembered::{Past, Which};
use super::window::{Fate, Part};

impl Pipeline {
    /// Forgets what was read in lanes that are not ours any more, or through a connection that is gone: it is read again. Before
    /// anything else is done: what is read next must not be mixed with it, nor sent when others may have sent it.
    pub(super) fn forget_lost(&mut self) {
        let (reader, remembered) = (&self.reader, &mut self.remembered);
        let keys = self.window.retain(
            |batch, lane| reader.holds(batch, lane),
            |record, refused| remembered.add(Which::of(record), Past::of(refused)),
        );
        self.on_forgotten(&keys);
    }

    /// Others are to have some lanes. What was read of them and not sent is theirs to send, however much it is and however slow the sink:
    /// it is enough that what was sent is settled. One look at them decides both what is given back and what is not sent.
    pub(super) fn give_way(&mut self) {
        self.retiring = self.reader.retiring();
        let sending = self.sending.as_ref().map(|sending| &sending.lanes);
        let is_begun =
            |lane: i16| self.window.is_owing(lane) || sending.is_some_and(|lanes| lanes.contains(&lane));
        let mut lanes = self.reader.tenures();
        lanes.retain(|lane, _| self.retiring.contains(lane) && !is_begun(*lane));
        self.reader.give_back(lanes);
    }

    /// Of a sink that only one relay can have open, who has no lanes any more must not keep it from who has them now.
    pub(super) fn leave_to_others(&mut self) {
        if self.settings.target.is_exclusive()
            && self.reader.tenures().is_empty()
            && let Some(outlet) = &mut self.outlet
        {
            outlet.let_go();
        }
    }

    /// Forgets all other lanes of the window.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&Batch, i16) -> bool) {
        let remembered = &mut self.remembered;
        let keys = self
            .window
            .retain(is_kept, |record, refused| remembered.add(Which::of(record), Past::of(refused)));
        self.on_forgotten(&keys);
    }

    fn on_forgotten(&mut self, keys: &[String]) {
        for key in keys {
            self.held.on_parked(key);
        }
        if !self.remembered.is_empty() {
            // What is on its way to be parked looks as if it were delivered.
            for event in &self.parking {
                event.correct(&mut self.remembered);
            }
        }
    }

    /// What is known of these from before holds again.
    pub(super) fn recall(&mut self, parts: &[Part]) {
        for part in parts {
            if self.remembered.is_empty() {
                return;
            }
            let fates: Vec<Fate> = part
                .records()
                .iter()
                .map(|record| match self.remembered.take(Which::of(record)) {
                    Some(past) => self.fate(record, past),
                    None => Fate::Unsent,
                })
                .collect();
            self.window.on_fates(part, fates);
        }
    }
}
