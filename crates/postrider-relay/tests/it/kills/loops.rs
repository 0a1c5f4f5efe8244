//! `kill -9` again and again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider_testkit::Confirm;
use rand::RngExt as _;
use rand::rngs::StdRng;
use sqlx::PgConnection;
use tokio::task::JoinSet;

use super::process::{Order, RelayProcess};
use super::soak;
use super::world::{LEASE, MAX_IN_FLIGHT, World};
use crate::support::PATIENCE;

/// What the killers have done so far.
#[derive(Default)]
struct Toll {
    kills: AtomicUsize,
    /// Those at which events were sent and not settled.
    counted: AtomicUsize,
    /// When each was killed, and when all its lanes had gone to others.
    takeovers: Mutex<Vec<(Instant, Instant)>>,
}

impl Toll {
    /// How long each takeover was, the shortest first. A relay that died while the lease of another ran was still counted on to take its
    /// share: from then on, and so forth.
    fn takeovers(&self) -> Vec<Duration> {
        let takeovers = self.takeovers.lock().unwrap();
        let length = |(killed, over): &(Instant, Instant)| {
            let mut last = *killed;
            let within =
                |last: Instant| move |other: &Instant| *other > last && *other < (last + LEASE).min(*over);
            while let Some(next) = takeovers.iter().map(|(other, _)| *other).filter(within(last)).max() {
                last = next;
            }
            over.duration_since(last)
        };
        let mut lengths: Vec<Duration> = takeovers.iter().map(length).collect();
        lengths.sort();
        lengths
    }
}

/// What a machine that is full of other tests may take for itself.
const ROOM: Duration = Duration::from_secs(20);

/// Somewhere between 200 ms and 2 s, each order of magnitude as likely as another.
fn life(rng: &mut StdRng) -> Duration {
    Duration::from_millis(200).mul_f64(10_f64.powf(rng.random_range(0.0..1.0)))
}

/// Kills the relays of one seat, one after another, until the goal is reached. The last one lives.
async fn seat(world: Arc<World>, toll: Arc<Toll>, goal: usize, number: u64) -> RelayProcess {
    let mut rng = world.seed.for_task(1000 + number).rng();
    let mut connection = world.database.connect().await.unwrap();
    let mut relay = world.relay();
    while toll.counted.load(Ordering::Relaxed) < goal {
        sent(&world, relay.number).await;
        tokio::time::sleep(life(&mut rng)).await;
        // Just after it has sent something, most of the time; its lanes may have gone to others by now.
        let _ = tokio::time::timeout(LEASE, world.collector.next_from(relay.number)).await;
        let victim = relay.number;
        relay.kill();
        let killed = Instant::now();
        toll.kills.fetch_add(1, Ordering::Relaxed);
        if world.unsettled_of(victim, &mut connection).await > 0 {
            toll.counted.fetch_add(1, Ordering::Relaxed);
        }
        relay = world.relay();
        world.until_lanes(victim, 0, &mut connection).await;
        toll.takeovers.lock().unwrap().push((killed, Instant::now()));
    }
    relay
}

async fn sent(world: &World, relay: u32) {
    let in_time = tokio::time::timeout(PATIENCE, world.collector.next_from(relay)).await;
    assert!(in_time.is_ok(), "relay {relay} sends nothing");
}

/// Kills so many relays under load; the load that still runs, the relays that live, and how many were killed.
pub async fn kill(world: &Arc<World>, seats: u64, goal: usize) -> (JoinSet<()>, Vec<RelayProcess>, usize) {
    let (load, relays, toll) = killed(world, seats, goal).await;
    (load, relays, toll.kills.load(Ordering::Relaxed))
}

async fn killed(world: &Arc<World>, seats: u64, goal: usize) -> (JoinSet<()>, Vec<RelayProcess>, Arc<Toll>) {
    let load = super::load::start(world);
    let toll = Arc::new(Toll::default());
    let seats: JoinSet<RelayProcess> =
        (0..seats).map(|number| seat(Arc::clone(world), Arc::clone(&toll), goal, number)).collect();
    (load, seats.join_all().await, toll)
}

async fn kill_loop(test: &str, seats: u64, goal: usize) {
    let goal = goal * soak();
    let world = World::new(test).await;
    let (load, relays, toll) = killed(&world, seats, goal).await;
    let report = world.finish(load, relays).await;

    let (kills, counted) = (toll.kills.load(Ordering::Relaxed), toll.counted.load(Ordering::Relaxed));
    let takeovers = toll.takeovers();
    let longest = takeovers.last().copied().unwrap_or_default();
    let nearly_all = takeovers[takeovers.len() * 19 / 20];
    let again = world.collector.sent_again();
    let most = again.values().max().copied().unwrap_or_default();
    println!(
        "{test}: {report}; {counted} kills count of {kills}; taken over after {longest:.2?} at most, {nearly_all:.2?} in 19 of 20; at most {most} of {MAX_IN_FLIGHT} twice after a kill"
    );
    assert!(report.is_faithful(), "{report}");
    assert!(counted >= goal);
    assert!(most <= MAX_IN_FLIGHT as usize, "sent again by relay: {again:?}");
    // A relay that lives repeats nothing of its own either.
    assert!(report.duplicated.count <= kills * MAX_IN_FLIGHT as usize, "{report}");
    let due = LEASE + Duration::from_secs(1);
    assert!(longest <= due + ROOM, "{longest:?}");
    assert!(soak() == 1 || nearly_all <= due, "{nearly_all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_one_relay_killed() {
    // They wait most of the time: two at once.
    tokio::join!(kill_loop("one relay killed", 1, 7), kill_loop("one relay killed, beside another", 1, 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_two_relays_killed() {
    tokio::join!(kill_loop("two relays killed", 2, 16), kill_loop("two relays killed, beside others", 2, 16));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_three_relays_killed() {
    tokio::join!(
        kill_loop("three relays killed", 3, 27),
        kill_loop("three relays killed, beside others", 3, 27)
    );
}

/// The worst moment to die is just after a heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_with_the_default_lease_lanes_are_taken_over_within_six_seconds() {
    let world = World::new("takeover with the default lease").await;
    let mut connection = world.database.connect().await.unwrap();
    let load = super::load::start(&world);
    let order = || Order { lease: Duration::from_secs(5), ..world.order() };
    let mut victim = RelayProcess::start(&order());
    let mut heir = RelayProcess::start(&order());
    // A machine that is full of other tests may be late now and then; a relay that is late each time is not the machine's fault.
    let (rounds, late) = if soak() > 1 { (soak(), 1) } else { (8, 6) };
    let mut takeovers = Vec::new();
    let in_time =
        |takeovers: &[Duration]| takeovers.iter().filter(|took| **took <= Duration::from_secs(6)).count();
    while takeovers.len() < rounds && in_time(&takeovers) < rounds - late {
        world.until_lanes(victim.number, 8, &mut connection).await;
        world.until_lanes(heir.number, 8, &mut connection).await;
        after_heartbeat(victim.number, &mut connection).await;
        let number = victim.number;
        victim.kill();
        let flowing = world.until_all_lanes_flow(&mut connection).await;
        world.until_lanes(number, 0, &mut connection).await;
        takeovers.push(flowing);
        victim = heir;
        heir = RelayProcess::start(&order());
    }
    println!("taken over and flowing after {takeovers:.2?}");
    assert!(in_time(&takeovers) >= rounds - late, "{takeovers:?}");
    let report = world.finish(load, vec![victim, heir]).await;
    println!("{report}");
    assert!(report.is_faithful(), "{report}");
}

async fn after_heartbeat(relay: u32, connection: &mut PgConnection) {
    let mut expires = async || -> String {
        sqlx::query_scalar("select expires_at::text from postrider.readers where name = $1")
            .bind(format!("relay {relay}"))
            .fetch_one(&mut *connection)
            .await
            .unwrap()
    };
    let before = expires().await;
    while expires().await == before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The loop finds what it is for: a relay that settles what it has not delivered fails within ten kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_a_relay_that_settles_before_it_delivers_is_found_out() {
    let world = World::new("settles before it delivers").await;
    world.collector.confirm(Confirm::After(Duration::from_millis(100)));
    let mut connection = world.database.connect().await.unwrap();
    let load = super::load::start(&world);
    let (mut kills, mut lost) = (0, 0);
    let mut rng = world.seed.for_task(1000).rng();
    let mut relay = RelayProcess::start(&Order { eager: true, ..world.order() });
    while kills < 10 && lost == 0 {
        sent(&world, relay.number).await;
        tokio::time::sleep(life(&mut rng)).await;
        kills += 1;
        let victim = relay.number;
        relay.kill();
        let settled = world.settled(&mut connection).await;
        relay = RelayProcess::start(&Order { eager: true, ..world.order() });
        world.until_lanes(victim, 0, &mut connection).await;
        // Nobody sends what is settled.
        lost = world.missing_of(settled);
        println!("kill {kills}: {lost} lost");
    }
    world.end(load).await;
    assert!(lost > 0, "{kills} kills have not shown it");
}
