//! What the outside tells a running relay.

use std::time::{Duration, Instant};

use tokio::signal::unix::{self, SignalKind};

use crate::exit::Exit;
use crate::failure::Failure;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGTERM or Ctrl-C.
    Stop,
    /// SIGHUP.
    Reload,
}

/// Once this is there, none of them ends the process by itself.
pub(crate) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| unix::signal(kind).map_err(|error| Failure::new(Exit::Failed, error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }

    /// The first one that says stop.
    pub(super) async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }

    /// Another one that says stop. `timeout`, shells and supervisors tell the process and its group, which is one wish told twice.
    pub(super) async fn second(&mut self) {
        const SAME: Duration = Duration::from_millis(250);
        let first = Instant::now();
        while self.next().await != Signal::Stop || first.elapsed() < SAME {}
    }
}
