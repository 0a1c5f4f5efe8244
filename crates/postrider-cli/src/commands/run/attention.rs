//! What is heard and said whatever else is being done.

use std::pin::pin;

use super::signals::{Signal, Signals};
use crate::notify::Supervisor;

/// Hears signals and tells the supervisor that all is well.
pub(super) struct Attention {
    pub(super) signals: Signals,
    pub(super) supervisor: Supervisor,
    /// Somebody asked for it while something else was being done.
    reload: bool,
}

impl Attention {
    pub(super) fn new(signals: Signals) -> Self {
        Self { signals, supervisor: Supervisor::from_env(), reload: false }
    }

    /// The next wish.
    pub(super) async fn next(&mut self, is_alive: impl Fn() -> bool) -> Signal {
        if std::mem::take(&mut self.reload) {
            return Signal::Reload;
        }
        tokio::select! {
            signal = self.signals.next() => signal,
            never = self.supervisor.keep_watchdog(is_alive) => match never {},
        }
    }

    /// Does something that may take its time. `None`, and it is given up, if somebody says stop meanwhile; who says reload is heard
    /// afterwards.
    pub(super) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        is_alive: impl Fn() -> bool,
    ) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                signal = self.signals.next() => match signal {
                    Signal::Stop => return None,
                    Signal::Reload => self.reload = true,
                },
                never = self.supervisor.keep_watchdog(&is_alive) => match never {},
            }
        }
    }
}
