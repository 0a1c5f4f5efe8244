//! Much to do after an outage, and a database that cannot clean up.

use std::time::{Duration, Instant};

use super::child::{Child, Word};
use super::load::Load;
use super::{rounds, run};
use crate::support::{PATIENCE, Probe, database, emit_many, settings, sink};

#[tokio::test(flavor = "multi_thread")]
async fn fault_39_a_backlog_is_carried_with_flat_memory_at_a_steady_rate() {
    let backlog = rounds(150_000, 10_000_000);
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut child = Child::start(&database.url(), &["env"]);
    // The sink is away while the backlog grows.
    let step = 50_000;
    for from in (0..backlog).step_by(step) {
        emit_many(
            &mut writer,
            i64::try_from(from).unwrap(),
            i64::try_from(step.min(backlog - from)).unwrap(),
            1000,
        )
        .await;
    }
    child.is(&["waiting"]).await;
    child.open_gate().await;
    let begun = Instant::now();
    let mut taken = Vec::new();
    let again = loop {
        if let Word::Took { events, again, resident } = child.next().await {
            taken.push((begun.elapsed(), events, resident));
            if events == backlog {
                break again;
            }
        }
    };
    assert_eq!(again, 0);
    let rate = |from: usize, to: usize| {
        let at = |wanted: usize| taken.iter().find(|(_, events, _)| *events >= wanted).unwrap();
        let ((t1, n1, _), (t2, n2, _)) = (at(from), at(to));
        f64::from(u32::try_from(n2 - n1).unwrap()) / t2.saturating_sub(*t1).as_secs_f64()
    };
    let resident = |wanted: usize| taken.iter().find(|(_, events, _)| *events >= wanted).unwrap().2;
    // The test's own book of what came: a set with room for twice as many ids, as it is when it has just grown.
    let book = u64::try_from(backlog).unwrap() * 36 / 1024;
    // What a machine has beside slows some tenths, a backlog that makes reading dearer all of the later ones: the slowest early one against
    // the best late one.
    let tenth = |number: usize| rate(backlog / 10 * number, backlog / 10 * (number + 1));
    let mut first = [1, 2, 3, 4].map(tenth);
    first.sort_by(f64::total_cmp);
    let (early, late) = (first[0], [5, 6, 7, 8].map(tenth).into_iter().fold(0.0, f64::max));
    println!(
        "{backlog} events: {early:.0}/s at first, {late:.0}/s at the end; {} and {} kB resident",
        resident(backlog / 5),
        resident(backlog)
    );
    assert!(late > early / 3.0, "{early:.0}/s at first, {late:.0}/s at the end");
    assert!(resident(backlog) < resident(backlog / 5) + 20_000 + book, "{taken:?}");
    assert!(resident(backlog) < 100_000 + book, "{} kB", resident(backlog));
}

/// A snapshot that is held for long keeps dead rows of heartbeats and leases from being cleaned up.
#[tokio::test(flavor = "multi_thread")]
async fn fault_40_dead_rows_under_an_old_snapshot_do_not_slow_delivery() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let mut settings = settings(&database, vec![sink("probe", probe.target())]);
    // A heartbeat every 20 ms: as many dead rows as hours make.
    settings.log.lease = Duration::from_millis(60);
    settings.log.idle.1 = Duration::from_millis(20);
    let relay = postrider_relay::Relay::start(settings).unwrap();
    let mut load = Load::start(&database.url(), 0);
    load.mark(&mut admin, &probe).await;
    let before = usual(&mut load, &mut admin, &probe).await;

    let mut old = database.connect().await.unwrap();
    run(&mut old, "begin isolation level repeatable read; select count(*) from postrider.events").await;
    let other = Load::start(&database.url(), 3);
    other.more(rounds(5_000, 500_000)).await;
    run(
        &mut admin,
        "do $$ begin for n in 1..2000 loop
            update postrider.readers set expires_at = expires_at; commit;
            -- As everybody who changes leases does: one after another.
            perform from postrider.sinks for update; update postrider.leases set epoch = epoch; commit;
         end loop; end $$",
    )
    .await;
    let written = other.stop().await;
    // Dead rows slow every delivery, a machine that has other work only some: it is slow each time, or it is the machine.
    let slow = before * 2 + Duration::from_millis(5);
    let (begun, mut after) = (Instant::now(), Vec::new());
    while after.last().is_none_or(|usual| *usual >= slow) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{before:?} before, each time more than {slow:?} after: {after:?}"
        );
        after.push(usual(&mut load, &mut admin, &probe).await);
    }
    println!("usually {before:?} before, {after:?} under an old snapshot");
    run(&mut old, "commit").await;
    let _ = load.stop().await;
    let taken = probe.count();
    assert!(taken >= written.committed());
    relay.stop().await;
}

/// The time from the commit of one event to its delivery that a quarter of them keep within: what slows every delivery shows in it, and
/// what the machine does beside does not.
async fn usual(load: &mut Load, connection: &mut sqlx::PgConnection, probe: &Probe) -> Duration {
    let mut times = Vec::new();
    for _ in 0..50 {
        times.push(load.mark(connection, probe).await);
    }
    times.sort_unstable();
    times[times.len() / 4]
}
