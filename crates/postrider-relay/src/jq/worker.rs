//! The thread that evaluates, and what is done when it does not come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::Verdict;
use super::meter::STACK;
use super::program::Program;

/// A thread that made no progress for two such periods is given up. Two, because a process that was stopped as a whole for longer
/// finds the first one over when it wakes.
const PATIENCE: Duration = Duration::from_secs(1);
/// Threads that were left to themselves cost a core and memory each. With so many, no more are begun until one comes back.
const MOST_LEFT: usize = 4;

type Input = Result<Vec<u8>, String>;

/// Evaluates on a thread of its own.
pub(crate) struct Worker {
    program: Arc<Program>,
    thread: Option<Thread>,
    /// What is shared with threads that were left to themselves.
    left: Vec<Arc<Shared>>,
}

/// A running thread: what it is sent, and what it shares.
struct Thread {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

struct Job {
    inputs: Arc<[Input]>,
    /// The ones before were judged already.
    from: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    cancelled: AtomicBool,
}

#[derive(Default)]
struct State {
    verdicts: Vec<Verdict>,
    /// Nothing more will come.
    ended: bool,
}

impl Worker {
    pub(crate) fn new(program: Program) -> Self {
        Self { program: Arc::new(program), thread: None, left: Vec::new() }
    }

    /// One verdict for each input, in order.
    pub(crate) fn judge(&mut self, inputs: Vec<Input>) -> Vec<Verdict> {
        let inputs: Arc<[Input]> = inputs.into();
        let mut verdicts = Vec::with_capacity(inputs.len());
        while verdicts.len() < inputs.len() {
            let thread = match self.thread.take().map_or_else(|| self.start(), Ok) {
                Ok(thread) => thread,
                Err(reason) => {
                    verdicts.resize(inputs.len(), Verdict::Fail(reason));
                    return verdicts;
                }
            };
            // If the thread has ended, the answer is empty, and the next round starts another.
            let _ = thread.jobs.send(Job { inputs: Arc::clone(&inputs), from: verdicts.len() });
            let missing = inputs.len() - verdicts.len();
            let (mut answer, fate) = thread.shared.wait(missing);
            verdicts.append(&mut answer);
            match fate {
                Fate::Done => self.thread = Some(thread),
                Fate::Ended => {}
                Fate::Stuck => {
                    thread.shared.cancelled.store(true, Ordering::Relaxed);
                    self.left.push(thread.shared);
                    tracing::warn!(
                        "a filter or transform does not come back from one operation; its thread is left to itself"
                    );
                    verdicts
                        .push(Verdict::Fail("filter or transform takes too long on this event".to_owned()));
                }
            }
        }
        verdicts
    }

    fn start(&mut self) -> Result<Thread, String> {
        self.left.retain(|shared| !shared.lock().ended);
        let left = self.left.len();
        if left >= MOST_LEFT {
            return Err(format!("filter or transform is still busy with {left} earlier events"));
        }
        Thread::start(&self.program)
            .map_err(|error| format!("cannot start a thread for filter and transform: {error}"))
    }
}

/// How waiting for a thread ended.
enum Fate {
    Done,
    Ended,
    Stuck,
}

impl Thread {
    fn start(program: &Arc<Program>) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let shared = Arc::new(Shared::default());
        let (program, theirs) = (Arc::clone(program), Arc::clone(&shared));
        thread::Builder::new().name("jq".to_owned()).stack_size(STACK).spawn(move || {
            // Also when it unwinds, whoever waits hears of it.
            let ending = Ending(&theirs);
            while let Ok(job) = inbox.recv() {
                for input in &job.inputs[job.from..] {
                    let (verdict, stopped) = match input {
                        Ok(input) => program.judge(input, &theirs.cancelled),
                        Err(reason) => (Verdict::Beyond(reason.clone()), false),
                    };
                    theirs.lock().verdicts.push(verdict);
                    if stopped {
                        return;
                    }
                }
                ending.0.changed.notify_one();
            }
        })?;
        Ok(Self { jobs, shared })
    }
}

struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is a list that only grows: a panic leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, missing: usize) -> (Vec<Verdict>, Fate) {
        let mut state = self.lock();
        let (mut seen, mut idle) = (0, 0);
        let fate = loop {
            if state.verdicts.len() >= missing {
                break Fate::Done;
            }
            if state.ended {
                break Fate::Ended;
            }
            if idle == 2 {
                break Fate::Stuck;
            }
            let (next, timeout) =
                self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() {
                idle = if state.verdicts.len() == seen { idle + 1 } else { 0 };
                seen = state.verdicts.len();
            }
        };
        (std::mem::take(&mut state.verdicts), fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_are_begun_than_may_be_left_to_themselves() {
        let mut worker = Worker::new(Program { filter: None, transform: None });
        worker.left = (0..MOST_LEFT).map(|_| Arc::default()).collect();
        let inputs = || vec![Ok(b"{}".to_vec()), Ok(b"{}".to_vec())];
        let busy = Verdict::Fail("filter or transform is still busy with 4 earlier events".to_owned());
        assert_eq!(worker.judge(inputs()), [busy.clone(), busy]);
        worker.left[1].lock().ended = true;
        assert_eq!(worker.judge(inputs()), [Verdict::Keep, Verdict::Keep]);
        assert_eq!(worker.left.len(), MOST_LEFT - 1);
    }
}
