//! A thread that does the blocking work of one sink.
//!
//! Preferred to `spawn_blocking`, whose pool is shared with everything else in the process: here the state stays where it is when a
//! delivery is given up half-way. What either costs: `cargo bench -p postrider-relay --all-features --bench prepare`.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread;

use tokio::sync::oneshot;

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Does one thing after another with its `T`. Dropped, it finishes what it was given and ends.
pub(crate) struct Hand<T> {
    jobs: Sender<Job<T>>,
}

impl<T: Send + 'static> Hand<T> {
    pub(crate) fn start(name: &str, mut state: T) -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = inbox.recv() {
                job(&mut state);
            }
        })?;
        Ok(Self { jobs })
    }

    /// What the work gives; nothing if the thread died of it.
    pub(crate) async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |state: &mut T| {
            // Nobody waits any more if the delivery was given up.
            let _ = answer.send(work(state));
        });
        self.jobs.send(job).ok()?;
        answered.await.ok()
    }
}
