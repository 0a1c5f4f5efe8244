//! A thread that does the blocking work of one sink.
//!
//! Preferred to `spawn_blocking`, whose pool is shared with everything else in the process: here the state stays where it is when a
//! delivery is given up half-way. What either costs: `cargo bench -p postrider-relay --all-features --bench prepare`.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use tokio::sync::{Semaphore, oneshot};

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Does one thing after another with its `T`. Dropped, it finishes what it was given and ends.
pub(crate) struct Hand<T> {
    jobs: Sender<Job<T>>,
    /// What was given up and hangs must not have what comes after it pile up behind it.
    free: Arc<Semaphore>,
}

impl<T: Send + 'static> Hand<T> {
    pub(crate) fn start(name: &str, mut state: T) -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = inbox.recv() {
                job(&mut state);
            }
        })?;
        Ok(Self { jobs, free: Arc::new(Semaphore::new(1)) })
    }

    /// What the work gives; nothing if the thread died of it.
    pub(crate) async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Option<R> {
        let busy = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |state: &mut T| {
            let done = work(state);
            drop(busy);
            // Nobody waits any more if the delivery was given up.
            let _ = answer.send(done);
        });
        self.jobs.send(job).ok()?;
        answered.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_was_given_up_while_it_waited_is_not_done_later() {
        let hand = Hand::start("test", 0).unwrap();
        let (open, gate) = mpsc::channel::<()>();
        let hangs = hand.run(move |_| gate.recv());
        assert!(tokio::time::timeout(Duration::from_millis(10), hangs).await.is_err());
        let given_up = hand.run(|count| *count += 1);
        assert!(tokio::time::timeout(Duration::from_millis(10), given_up).await.is_err());
        open.send(()).unwrap();
        assert_eq!(hand.run(|count| *count).await, Some(0));
    }
}
