//! What every sink has to pass, against its real server, with the fault proxy in between.
//!
//! A sink and its server are described by a [`Subject`]; [`examine`] runs every [`Test`] on it, one after the other:
//!
//! ```no_run
//! # async fn example(subject: impl postrider_testkit::conformance::Subject) {
//! postrider_testkit::conformance::examine(&subject).await.assert_passed();
//! # }
//! ```
//!
//! What cannot be asked of a sink (a file has no server that could be killed) is said by the subject, by the name of the test and with
//! the reason, and stands in the result. [`model`] has a sink that passes, and three that must not.

mod carrier;
mod confirmation;
mod event;
mod manners;
pub mod model;
mod order;
mod refusal;
mod stage;

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use postrider_relay::sink::{BoxFuture, Sink, Unavailable};
use uuid::Uuid;

use crate::{Broker, Service};
use stage::Stage;

/// What [`Door::WrongPassword`] is tried with. It must not turn up in any error.
pub const WRONG_PASSWORD: &str = "c4n4ry";

/// A sink under test, and the server behind it. The server is there when the examination begins, and nobody else uses it meanwhile.
pub trait Subject: Send + Sync {
    /// Opens the sink.
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>>;

    /// Where the server itself listens, as `host:port`: the proxy goes there. `None` if it is not reached over a network.
    fn upstream(&self, door: Door) -> Option<String>;

    /// Where ordinary events go, as a routing template would have rendered it.
    fn destination(&self) -> String;

    /// The ids of all that the server has at that destination, each as often as it is there, and those of one key in the server's own order.
    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>>;

    /// Does this to the server.
    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>>;

    /// So many bytes are too many for one event.
    fn oversize(&self) -> usize;

    /// A destination that does not exist, or where nobody listens.
    fn unroutable(&self) -> String;

    /// Why a test cannot be asked of this sink.
    fn exempt(&self, _test: Test) -> Option<&'static str> {
        None
    }

    /// Whether the server knows an event again by its id, so that none is there twice.
    fn never_repeats(&self) -> bool {
        false
    }

    /// How often the server is killed under load.
    fn kills(&self) -> usize {
        3
    }
}

/// How a sink is opened.
#[derive(Clone, Debug)]
pub struct Way {
    /// On 127.0.0.1, of the proxy in front of the server; 0 where there is none.
    pub port: u16,
    /// How long the sink is to wait for a confirmation.
    pub patience: Duration,
    /// As whom.
    pub door: Door,
}

/// As whom a sink comes, and through which entrance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// As it should.
    Plain,
    /// With [`WRONG_PASSWORD`].
    WrongPassword,
    /// Over TLS, trusting the authority that signed the server's certificate.
    Tls,
    /// Over TLS, trusting another authority.
    WrongAuthority,
}

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// SIGSTOP.
    Freeze,
    /// SIGCONT.
    Thaw,
    /// `kill -9`.
    Kill,
    /// After a kill, on the same port and with the same data; returns when it serves.
    Start,
}

impl Control {
    /// Does it to a broker.
    pub async fn done_to<S: Service>(self, broker: &Broker<S>) -> Result<()> {
        match self {
            Self::Freeze => broker.freeze(),
            Self::Thaw => broker.thaw(),
            Self::Kill => broker.crash().await,
            Self::Start => broker.start().await,
        }
    }
}

/// What is asked of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// Events of one key arrive in order, inside a batch and from batch to batch, and once.
    OrderInsideBatches,
    /// The same with connections that break at any byte.
    OrderAcrossReconnects,
    /// Nothing is called delivered while nothing reaches the server.
    ConfirmedByTheServer,
    /// A frozen server makes the sink unavailable after a time of the sink's own; then delivery goes on.
    DeadlineOfItsOwn,
    /// What was stored and not confirmed is sent again with the same id.
    LostConfirmations,
    /// `kill -9` of the server under load, again and again: what was called delivered is there.
    KilledServer,
    /// An event that is too large is refused, later ones of its key are not sent, everything else flows.
    Oversize,
    /// The same for one that nobody is there to take.
    Unroutable,
    /// Of a batch that could not be delivered nothing is kept.
    BoundedMemory,
    /// Closing leaves no connection behind, and does not wait for a frozen server.
    CleanClose,
    /// A wrong password is called that, without being told.
    BadCredentials,
    /// So is a certificate of an unknown authority; a known one is taken.
    BadTls,
}

impl Test {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 12] = [
        Self::OrderInsideBatches,
        Self::OrderAcrossReconnects,
        Self::ConfirmedByTheServer,
        Self::DeadlineOfItsOwn,
        Self::LostConfirmations,
        Self::KilledServer,
        Self::Oversize,
        Self::Unroutable,
        Self::BoundedMemory,
        Self::CleanClose,
        Self::BadCredentials,
        Self::BadTls,
    ];

    async fn run(self, stage: &mut Stage<'_>) -> Result<()> {
        match self {
            Self::OrderInsideBatches => order::inside_batches(stage).await,
            Self::OrderAcrossReconnects => order::across_reconnects(stage).await,
            Self::ConfirmedByTheServer => confirmation::by_the_server(stage).await,
            Self::DeadlineOfItsOwn => confirmation::deadline_of_its_own(stage).await,
            Self::LostConfirmations => confirmation::lost(stage).await,
            Self::KilledServer => confirmation::killed_server(stage).await,
            Self::Oversize => refusal::oversize(stage).await,
            Self::Unroutable => refusal::unroutable(stage).await,
            Self::BoundedMemory => manners::bounded_memory(stage).await,
            Self::CleanClose => manners::clean_close(stage).await,
            Self::BadCredentials => manners::bad_credentials(stage).await,
            Self::BadTls => manners::bad_tls(stage).await,
        }
    }
}

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Passed,
    /// And why.
    Failed(String),
    /// It cannot be asked of this sink, for this reason.
    Exempt(&'static str),
}

/// What became of each test.
#[derive(Clone, Debug)]
pub struct Verdicts(Vec<(Test, Verdict)>);

impl Verdicts {
    /// The tests that failed.
    pub fn failed(&self) -> Vec<Test> {
        let failed = self.0.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_)));
        failed.map(|(test, _)| *test).collect()
    }

    /// The tests that cannot be asked of this sink.
    pub fn exempt(&self) -> Vec<Test> {
        let exempt = self.0.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Exempt(_)));
        exempt.map(|(test, _)| *test).collect()
    }

    /// # Panics
    /// If a test failed.
    pub fn assert_passed(&self) {
        assert!(self.failed().is_empty(), "the sink does not keep the contract:\n{self}");
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (test, verdict) in &self.0 {
            match verdict {
                Verdict::Passed => writeln!(f, "  {test:?}: passed")?,
                Verdict::Failed(why) => writeln!(f, "  {test:?}: FAILED: {why}")?,
                Verdict::Exempt(why) => writeln!(f, "  {test:?}: cannot be asked: {why}")?,
            }
        }
        Ok(())
    }
}

/// Runs every test. What they say is printed, so that it is shown if one fails.
pub async fn examine(subject: &dyn Subject) -> Verdicts {
    let mut known = std::collections::HashSet::new();
    let mut verdicts = Vec::new();
    for test in Test::ALL {
        let begun = std::time::Instant::now();
        let verdict = match subject.exempt(test) {
            Some(why) => Verdict::Exempt(why),
            None => match Stage::run(subject, test, &mut known).await {
                Ok(()) => Verdict::Passed,
                Err(error) => Verdict::Failed(format!("{error:#}")),
            },
        };
        eprintln!("{test:?}: {verdict:?}, {:.1} s", begun.elapsed().as_secs_f32());
        verdicts.push((test, verdict));
    }
    Verdicts(verdicts)
}
