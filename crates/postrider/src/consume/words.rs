//! What went wrong, in words.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Waits for it; if it panics, what it said.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(in_panic(&*panic))),
    })
    .await
}

fn in_panic(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", words.as_deref().unwrap_or("without a word"))
}

/// An error with its causes.
pub(crate) fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}
