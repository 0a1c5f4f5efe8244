//! `postrider run --once`: what is committed now, for people with cron.

mod elsewhere;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postrider::log::Servers;
use postrider::outbox::Mode;
use postrider_relay::{Relay, SinkStatus, State};
use serde_json::json;
use sqlx::PgConnection;
use time::OffsetDateTime;

use self::elsewhere::Elsewhere;
use super::failure;
use super::signals::Signals;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

const STEP: Duration = Duration::from_millis(20);
/// The longest pause before the database is asked again.
const LONGEST: Duration = Duration::from_secs(1);

/// Delivers everything that is committed when it starts.
pub(super) async fn run(
    config: Config,
    patience: Duration,
    mut signals: Signals,
    as_json: bool,
) -> Result<Exit, Failure> {
    let database = config.relay.database.clone();
    let (mut connection, before) = tokio::select! {
        begun = begin(&database, patience) => begun?,
        () = signals.stop() => return Ok(Exit::Failed),
    };
    let polls = config.relay.outboxes.iter().any(|outbox| outbox.mode == Mode::Poll);
    let mut relay = Relay::start(config.relay).map_err(failure)?;
    let goal = if polls {
        // What waits in a table is committed too, and comes into the log only now.
        let moved = tokio::select! {
            moved = tokio::time::timeout(patience, relay.has_moved()) => moved.is_ok(),
            () = signals.stop() => false,
        };
        if !moved {
            relay.stop_or(signals.second()).await;
            return Err(Failure::new(
                Exit::Unavailable,
                anyhow::Error::msg("the rows of the outbox tables could not be moved in time"),
            ));
        }
        let (again, goal) = begin(&database, patience).await?;
        connection = again;
        goal
    } else {
        before
    };
    let watcher = relay.watcher();
    let work = async {
        let mut trouble: Option<Instant> = None;
        let mut questions: HashMap<String, Question> = HashMap::new();
        loop {
            let sinks = watcher();
            let mut waiting = Vec::new();
            for sink in &sinks {
                let question = questions.entry(sink.name.clone()).or_default();
                // For good: sinks are asked at different moments, and what is settled stays so.
                if !question.is_answered && question.is_due(sink, seems_done(sink, &goal)) {
                    match question.ask(&mut connection, sink, &goal).await {
                        // It may be back in a moment, as the relay's own sessions.
                        Err(failure) if failure.exit() == Exit::Unavailable => {
                            (connection, _) = begin(&database, patience).await?;
                        }
                        asked => asked?,
                    }
                }
                if question.is_answered {
                    continue;
                }
                if let Some(reason) = question.elsewhere.reason(&sink.name, patience) {
                    return Err(Failure::new(Exit::Unavailable, anyhow::Error::msg(reason)));
                }
                waiting.push(sink.clone());
            }
            if waiting.is_empty() {
                return Ok(Exit::Fine);
            }
            match waiting.iter().find_map(reason) {
                Some(reason) if trouble.get_or_insert_with(Instant::now).elapsed() > patience => {
                    return Err(Failure::new(Exit::Unavailable, anyhow::Error::msg(reason)));
                }
                Some(_) => {}
                None => trouble = None,
            }
            tokio::time::sleep(STEP).await;
        }
    };
    let ended = tokio::select! {
        ended = work => ended,
        error = relay.ended() => Err(failure(error)),
        () = signals.stop() => Ok(Exit::Failed),
    };
    relay.stop_or(signals.second()).await;
    tell(&watcher(), as_json)?;
    ended
}

/// What each sink got. As a document only where standard output is nobody's sink.
fn tell(sinks: &[SinkStatus], as_json: bool) -> Result<(), Failure> {
    for sink in sinks {
        tracing::info!(sink = sink.name, events = sink.delivered, "delivered");
    }
    if !as_json || sinks.iter().any(|sink| sink.kind == "stdout") {
        return Ok(());
    }
    let sinks: Vec<_> = sinks
        .iter()
        .map(|sink| json!({ "sink": sink.name, "kind": sink.kind, "delivered": sink.delivered }))
        .collect();
    output::json(&json!({ "sinks": sinks }))
}

/// A database that is away may come back, and a session that somebody ends can be opened anew.
async fn begin(database: &Servers, patience: Duration) -> Result<(PgConnection, Goal), Failure> {
    let begun = Instant::now();
    loop {
        let look = async {
            let mut connection = connect::open(database.clone()).await?;
            let goal = goal(&mut connection).await?;
            Ok((connection, goal))
        };
        match look.await {
            Err(failure) if Failure::exit(&failure) == Exit::Unavailable && begun.elapsed() < patience => {
                tokio::time::sleep(STEP * 10).await;
            }
            begun => return begun,
        }
    }
}

/// When to ask the database about a sink: when it seems to be done, or nothing moves here; and then less and less often.
#[derive(Default)]
struct Question {
    delivered: u64,
    pause: Duration,
    at: Option<Instant>,
    is_answered: bool,
    elsewhere: Elsewhere,
}

impl Question {
    async fn ask(
        &mut self,
        connection: &mut PgConnection,
        sink: &SinkStatus,
        goal: &Goal,
    ) -> Result<(), Failure> {
        self.is_answered = is_done(connection, sink, goal).await?;
        self.elsewhere.ask(connection, sink, goal.seq, goal.lanes).await
    }

    fn is_due(&mut self, sink: &SinkStatus, seems_done: bool) -> bool {
        let now = Instant::now();
        if self.delivered != sink.delivered && !seems_done {
            // It moves by our own hands.
            *self = Self { delivered: sink.delivered, pause: STEP, at: Some(now + STEP), ..Self::default() };
            return false;
        }
        if self.at.is_some_and(|at| now < at) {
            return false;
        }
        self.pause = (self.pause * 2).clamp(STEP, LONGEST);
        self.at = Some(now + self.pause);
        true
    }
}

/// What is to be done.
struct Goal {
    /// How far the log goes.
    seq: i64,
    lanes: usize,
    /// Parked events that are due by then are tried.
    at: OffsetDateTime,
}

async fn goal(connection: &mut PgConnection) -> Result<Goal, Failure> {
    let failed = |error: sqlx::Error| Failure::from(postrider::log::Error::from(error));
    postrider::schema::check_version(connection).await?;
    // Behind a sequence that was set back there is always nothing to do.
    postrider::log::identity::compare(connection).await?;
    let (seq, lanes, at): (i64, i32, OffsetDateTime) = sqlx::query_as(
        "select coalesce(pg_sequence_last_value('postrider.seq'), 0), postrider.lanes(), clock_timestamp()",
    )
    .fetch_one(connection)
    .await
    .map_err(failed)?;
    Ok(Goal { seq, lanes: usize::try_from(lanes).unwrap_or_default(), at })
}

/// This relay holds every lane and has settled as far as the log went. What a transaction wrote before that and committed late may
/// still be owed.
fn seems_done(sink: &SinkStatus, goal: &Goal) -> bool {
    sink.lanes.len() == goal.lanes && sink.settled_position.is_some_and(|position| position >= goal.seq)
}

/// Nothing of what was written up to the goal, and is committed, is owed to the sink, and of what was parked everything was tried that was
/// due, with what came free behind it. Whoever has delivered it.
async fn is_done(connection: &mut PgConnection, sink: &SinkStatus, goal: &Goal) -> Result<bool, Failure> {
    if sink.state == State::Starting {
        return Ok(false);
    }
    let nothing_waits = sqlx::query_scalar(
        "select exists (select from postrider.cursors where sink = $1)
            and not exists (
                select from postrider.cursors c
                cross join lateral (
                    select e.seq from postrider.events e where e.lane = c.lane and e.seq > c.position order by e.lane, e.seq limit 1) e
                where c.sink = $1 and e.seq <= $2)
            and not exists (select from postrider.late where sink = $1 and seq <= $2)
            and not exists (
                select from postrider.parked p join postrider.sinks s using (sink)
                where s.name = $1 and p.state = 'waiting'
                  and p.next_attempt_at <= case p.attempts when 0 then clock_timestamp() else $3 end)",
    )
    .bind(&sink.name)
    .bind(goal.seq)
    .bind(goal.at)
    .fetch_one(connection)
    .await;
    nothing_waits.map_err(|error| postrider::log::Error::from(error).into())
}

fn reason(sink: &SinkStatus) -> Option<String> {
    match &sink.state {
        State::Paused => Some(paused(&sink.name)),
        state => Some(format!("sink {:?}: {}", sink.name, state.trouble()?)),
    }
}

fn paused(sink: &str) -> String {
    format!("sink {sink:?} is paused: `postrider sinks resume {sink}` lets its events go on")
}
