//! A process that kills itself at a named point, and a source that does so before it acknowledges.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postrider::consumer::{Deliveries, Grave, Link, Message, Source, Terms, Trouble};
use postrider_testkit::{Process, Signal};

/// Where a process may end.
pub const POINTS: [&str; 4] = ["before effect", "after effect", "after commit", "before acknowledgement"];

/// Ends the process, by kill -9, when a point is passed for the so-and-so-manieth time.
#[derive(Debug, Clone)]
pub struct End {
    point: Option<String>,
    countdown: Arc<AtomicI64>,
}

impl End {
    pub fn new(point: Option<String>, countdown: i64) -> Self {
        Self { point, countdown: Arc::new(AtomicI64::new(countdown)) }
    }

    pub fn pass(&self, point: &str) {
        if self.point.as_deref() == Some(point) && self.countdown.fetch_sub(1, Ordering::AcqRel) == 1 {
            kill();
        }
    }
}

/// `kill -9` of this process.
pub fn kill() -> ! {
    Process::find(std::process::id().cast_signed()).unwrap().signal(Signal::KILL).unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

pub struct Fatal<S>(pub S, pub End);

pub struct FatalLink<L>(L, End);

impl<S: Source> Source for Fatal<S> {
    type Link = FatalLink<S::Link>;

    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn open(
        &self,
        terms: &Terms,
    ) -> Result<(Self::Link, Deliveries<<S::Link as Link>::Receipt>), Trouble> {
        let (link, deliveries) = self.0.open(terms).await?;
        Ok((FatalLink(link, self.1.clone()), deliveries))
    }
}

impl<L: Link> Link for FatalLink<L> {
    type Receipt = L::Receipt;

    async fn acknowledge(&self, receipt: &L::Receipt) -> Result<(), Trouble> {
        self.1.pass("before acknowledgement");
        self.0.acknowledge(receipt).await
    }

    async fn bury(&self, message: &Message, grave: &Grave<'_>) -> Result<(), Trouble> {
        self.0.bury(message, grave).await
    }

    async fn discard(&self, receipt: &L::Receipt) -> Result<(), Trouble> {
        self.0.discard(receipt).await
    }

    fn keep_every(&self) -> Option<Duration> {
        self.0.keep_every()
    }

    async fn keep(&self, receipts: &[L::Receipt]) -> Result<(), Trouble> {
        self.0.keep(receipts).await
    }

    async fn give_back(&self, receipts: &[L::Receipt]) -> Result<(), Trouble> {
        self.0.give_back(receipts).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
