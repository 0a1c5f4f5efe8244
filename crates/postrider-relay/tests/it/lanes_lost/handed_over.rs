//! Lanes that go to a relay that has come: when, and what is sent before by the one that had them.

use std::time::Duration;

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Outcome, Relay, Report, Sink, Unavailable, UnavailableKind};
use postrider_testkit::Database;
use tokio::sync::watch;

use super::{Gated, SOON, lanes, waits};
use crate::support::{Answer, Probe, assert_in_order, database, emit, emit_many, settings, sink, until};

/// A relay that loses no lane to a machine that stands still for some seconds: whatever goes to the other is handed over.
fn steady(database: &Database, target: Target) -> Relay {
    let mut settings = settings(database, vec![sink("probe", target)]);
    settings.log.lease = Duration::from_secs(9);
    Relay::start(settings).unwrap()
}

/// Whoever has read far ahead of a sink that is slow, or away for it alone, does not keep others from helping.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_handed_over_before_all_that_was_read_of_them_is_delivered() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    emit_many(&mut admin, 0, 2_000, 200).await;
    let (away, here) = (Probe::answering(|_| Answer::Unavailable), Probe::new());
    let one = steady(&database, away.target());
    waits(&one).await;
    lanes(&one, 16).await;
    let other = steady(&database, here.target());
    lanes(&other, 8).await;
    let theirs: i64 = sqlx::query_scalar("select count(*) from postrider.events where lane = any ($1)")
        .bind(&other.status()[0].lanes)
        .fetch_one(&mut admin)
        .await
        .unwrap();
    let theirs = usize::try_from(theirs).unwrap();
    here.wait_for(theirs).await;
    away.answer(|_| Answer::Take);
    away.wait_for(2_000 - theirs).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    other.stop().await;
    one.stop().await;
    assert_eq!((away.count(), here.count()), (2_000 - theirs, theirs), "each once");
    assert_in_order(&away.taken());
    assert_in_order(&here.taken());
}

/// Takes everything but what has one key: that is not sent as long as the gate is closed.
#[derive(Clone)]
struct Partly {
    gated: Gated,
    missing: String,
}

impl Sink for Partly {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if *self.gated.gate.borrow() {
                return self.gated.probe.deliver(batch).await;
            }
            let mut outcomes = Vec::new();
            for message in batch {
                if message.record.key.as_ref() == Some(&self.missing) {
                    outcomes.push(Outcome::NotSent);
                } else {
                    outcomes.extend(self.gated.probe.deliver(std::slice::from_ref(message)).await.outcomes);
                }
            }
            let why = Unavailable::new(UnavailableKind::Connection, "the gate is closed");
            Report { outcomes, unavailable: Some(Unavailable { retry_after: Some(SOON), ..why }) }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

/// What was delivered behind it cannot be settled before it is: it is sent, and the lane goes then.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_before_something_delivered_is_sent_before_its_lane_is_handed_over() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    // In the last lane, which is one of those that go.
    let keys: Vec<String> = sqlx::query_scalar(
        "select 'k' || n from generate_series(1, 1000) n where hashtextextended('k' || n, 0) & 15 = 15 order by n limit 2",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    let (open, gate) = watch::channel(false);
    let (one_probe, other_probe) = (Probe::new(), Probe::new());
    let partly = Partly { gated: Gated { gate, probe: one_probe.clone() }, missing: keys[0].clone() };
    let target = Target::Custom(Custom::new("partly", move || {
        let partly = partly.clone();
        Box::pin(async move { Ok(Box::new(partly) as Box<dyn Sink>) })
    }));
    let one = steady(&database, target);
    emit(&mut admin, "1", Some(&keys[0])).await;
    emit(&mut admin, "2", Some(&keys[1])).await;
    one_probe.wait_for(1).await;
    let other = steady(&database, other_probe.target());
    lanes(&other, 7).await;
    open.send(true).unwrap();
    lanes(&other, 8).await;
    emit(&mut admin, "3", Some(&keys[0])).await;
    other_probe.wait_for(1).await;
    other.stop().await;
    one.stop().await;
    let types = |probe: &Probe| probe.taken().into_iter().map(|taken| taken.r#type).collect::<Vec<_>>();
    assert_eq!(
        (types(&one_probe), types(&other_probe)),
        (vec!["2".to_owned(), "1".to_owned()], vec!["3".to_owned()])
    );
}
