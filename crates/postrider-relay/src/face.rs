//! The side of a pipeline that others see, whatever it is busy with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use uuid::Uuid;

use crate::status::{SinkStatus, State};

#[derive(Debug)]
struct Shown {
    status: SinkStatus,
    last_turn: Instant,
    taken_back: Vec<Uuid>,
}

/// Written by the pipeline, read by anybody. Clones show the same.
#[derive(Debug, Clone)]
pub(crate) struct Face(Arc<Mutex<Shown>>);

impl Face {
    pub(crate) fn new(name: &str, kind: &'static str) -> Self {
        let status = SinkStatus {
            name: name.to_owned(),
            kind,
            state: State::Starting,
            since: SystemTime::now(),
            lanes: Vec::new(),
            in_flight: 0,
            delivered: 0,
            last_delivery: None,
            silent_for: std::time::Duration::ZERO,
            silence: None,
            settled_position: None,
        };
        Self(Arc::new(Mutex::new(Shown { status, last_turn: Instant::now(), taken_back: Vec::new() })))
    }

    /// A snapshot.
    pub(crate) fn status(&self) -> SinkStatus {
        let shown = self.lock();
        SinkStatus { silent_for: shown.last_turn.elapsed(), ..shown.status.clone() }
    }

    /// The loop has turned.
    pub(crate) fn turn(&self, change: impl FnOnce(&mut SinkStatus)) {
        let mut shown = self.lock();
        shown.last_turn = Instant::now();
        change(&mut shown.status);
    }

    pub(crate) fn set(&self, state: State) {
        let mut shown = self.lock();
        shown.last_turn = Instant::now();
        if std::mem::discriminant(&shown.status.state) != std::mem::discriminant(&state) {
            shown.status.since = SystemTime::now();
        }
        shown.status.state = state;
    }

    pub(crate) fn state(&self) -> State {
        self.lock().status.state.clone()
    }

    pub(crate) fn on_delivered(&self, events: usize) {
        if events > 0 {
            let mut shown = self.lock();
            shown.status.delivered += events as u64;
            shown.status.last_delivery = Some(SystemTime::now());
        }
    }

    pub(crate) fn on_taken_back(&self, events: Vec<Uuid>) {
        self.lock().taken_back.extend(events);
    }

    pub(crate) fn taken_back(&self) -> Vec<Uuid> {
        self.lock().taken_back.clone()
    }

    /// What is behind it is whole at any moment, so a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
