//! What a reader does about progress: begin to store it, and heed what came of that.

use std::sync::Arc;
use std::time::Instant;

use super::{Driver, Settle, failing};
use crate::log::link::Link;
use crate::log::settling::Meanwhile;

impl Driver {
    pub(super) fn begin_settling(&mut self, settle: Settle) {
        let mut holding = self.link.as_mut().map(Link::holding);
        let (commands, pending) = (&mut self.commands, &mut self.pending);
        let (settling, ended) = (&mut self.settling, &mut self.ended);
        let (patience, lease, failures) = (self.options.patience, self.options.lease, &mut self.unsettled);
        let (holder, state) = (self.holder, &self.state);
        Meanwhile { holder, patience, lease, failures, commands, pending, settling, ended, state }
            .begin(settle, holding.as_mut());
    }

    /// Waits for the settling that is on its way, if there is one.
    pub(super) async fn end_settling(&mut self) {
        let ended = match (self.ended.take(), self.settling.take()) {
            (Some(ended), _) => ended,
            (None, Some(running)) => running.await,
            (None, None) => return,
        };
        match ended {
            Ok(Ok(stored)) => {
                self.unsettled = 0;
                if let Some(link) = &mut self.link {
                    link.holding().on_stored(stored);
                }
            }
            Ok(Err((error, reply))) => {
                // Whether it was stored is unknown, or somebody else stores now: only what is stored counts from here on.
                self.drop_link();
                // Pauses grow for a database that takes no progress, not for one whose connections are ended now and then.
                self.unsettled = if error.is_disconnect() { 1 } else { self.unsettled.saturating_add(1) };
                self.connect_at = Some(Instant::now() + failing::pause_after(self.unsettled));
                self.trouble = Some(Arc::from(error.to_string()));
                // Before the answer: what the reader takes next must not come from a connection that was just given up.
                self.show();
                let _ = reply.send(Err(error));
            }
            // It panicked; the reader sees its reply dropped.
            Err(_) => self.drop_link(),
        }
    }
}
