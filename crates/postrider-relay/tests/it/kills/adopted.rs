//! Relays that are killed while they keep an adopted outbox table: nothing is lost, and the table's own columns are true in the end.

use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_relay::Message;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::loops::kill;
use super::soak;
use super::world::World;
use crate::outbox::{declared, execute, tables};
use crate::support::until;

/// At which something was in flight.
const KILLS: usize = 10;

/// The table that is adopted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Adopted {
    preset: usize,
    is_polled: bool,
}

impl Adopted {
    fn new(preset: Preset, mode: Mode) -> Self {
        let place = Preset::ALL.iter().position(|one| *one == preset).unwrap();
        Self { preset: place, is_polled: mode == Mode::Poll }
    }

    fn preset(self) -> Preset {
        Preset::ALL[self.preset]
    }

    pub fn declared(self) -> Outbox {
        declared(self.preset(), if self.is_polled { Mode::Poll } else { Mode::Trigger })
    }

    /// Numbers and inserts some rows of a key, under the lock of the key's row; ids and numbers.
    pub async fn insert(
        self,
        connection: &mut PgConnection,
        key: &str,
        times: i32,
    ) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
        let uuid = tables::entity(key);
        let (columns, values, id) = match self.preset() {
            Preset::Plane => (
                "event_id, event_type, entity_id, workspace_id, initiator_type, created_at",
                format!("gen_random_uuid(), 'kills', '{uuid}', '{uuid}', 'USER', now()"),
                "event_id",
            ),
            Preset::OutboxEvents => {
                ("aggregate_type, aggregate_id, event_type", format!("'K', '{key}', 'kills'"), "id")
            }
            Preset::EventsOutbox => ("aggregate_id, type", format!("'{uuid}', 'kills'"), "id"),
            Preset::OutboxTopic => ("topic, key", format!("'kills', '{key}'"), "id"),
            Preset::OutboxUuid => ("topic", "'kills'".to_owned(), "id"),
            Preset::Debezium => (
                "id, aggregatetype, aggregateid, type",
                format!("gen_random_uuid(), 'K', '{key}', 'kills'"),
                "id",
            ),
        };
        let statement = format!(
            "with counted as (update counters set n = n + $2 where key = $1 returning n)
             insert into outbox ({columns}, payload)
             select {values}, json_build_object('n', m) from counted, generate_series(n - $2 + 1, n) m order by m
             returning {id}::text, (payload ->> 'n')::bigint"
        );
        let rows: Vec<(String, i64)> =
            sqlx::query_as(AssertSqlSafe(statement)).bind(key).bind(times).fetch_all(connection).await?;
        Ok(rows.into_iter().map(|(id, n)| (identity(&id), n)).collect())
    }

    /// The key as the event has it; without one every event is a key of its own.
    pub fn key(self, key: &str, id: Uuid) -> String {
        match self.preset() {
            Preset::Plane | Preset::EventsOutbox => tables::entity(key),
            Preset::OutboxUuid => id.to_string(),
            _ => key.to_owned(),
        }
    }
}

/// The id that consumers know, as the books want it.
pub fn identity(id: &str) -> Uuid {
    id.parse().unwrap_or_else(|_| Uuid::from_u128(id.parse().unwrap()))
}

/// The same of a message, and its key.
pub fn identified(message: &Message<'_>) -> (Uuid, String) {
    let id = identity(&message.id.to_string());
    (id, message.record.key.clone().unwrap_or_else(|| id.to_string()))
}

async fn kill_keepers(preset: Preset, mode: Mode, relays: u64, kills: usize) {
    let adopted = Adopted::new(preset, mode);
    let test = format!("{} by {mode:?}, {relays} relays", preset.name());
    let world = World::adopting(&test, adopted).await;
    let mut connection = world.database.connect().await.unwrap();
    let (load, relays, kills) = kill(&world, relays, kills).await;
    world.end(load).await;
    if preset == Preset::Debezium && mode == Mode::Poll {
        // What is taken is deleted: what is left is not in the log yet.
        crate::outbox::until(&mut connection, "select count(*) from outbox", 0).await;
    }
    until(&mut connection, "select sum(events) = 0 from postrider.backlog").await;
    if let Some(sent) = tables::sent(preset) {
        crate::outbox::until(
            &mut connection,
            &format!("select count(*) from outbox where {sent} is null"),
            0,
        )
        .await;
    }
    let report = world.ledger.check(world.collector.receipts());
    println!("{test}: {report}; {kills} kills");
    // Random ids, and nothing else that says which row came first: polled, such a table has no order to keep.
    let has_order = preset != Preset::Debezium || mode == Mode::Trigger;
    assert!(report.lost.is_empty() && report.phantom.is_empty(), "{report}");
    assert!(!has_order || report.is_faithful(), "{report}");
    until(&mut connection, "select not exists (select from postrider.adopted)").await;
    if preset == Preset::Plane {
        until(&mut connection, "select bool_and(claimed_at <= processed_at) from outbox").await;
    }
    for relay in relays {
        assert!(relay.stop().await.success());
    }
}

/// What a world needs before it begins.
pub async fn prepare(connection: &mut PgConnection, adopted: Adopted) {
    execute(connection, tables::table(adopted.preset())).await;
    outbox::apply(connection, &[adopted.declared()], false).await.unwrap();
}

/// Where two relays have shown it the suite is content with less.
fn fewer() -> usize {
    if soak() == 1 { 4 } else { KILLS }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_two_relays_that_keep_a_table_by_trigger_are_killed() {
    kill_keepers(Preset::Plane, Mode::Trigger, 2, KILLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_two_relays_that_move_a_table_s_rows_are_killed() {
    kill_keepers(Preset::Plane, Mode::Poll, 2, KILLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_one_relay_that_keeps_a_table_is_killed() {
    tokio::join!(
        kill_keepers(Preset::Plane, Mode::Trigger, 1, fewer()),
        kill_keepers(Preset::Plane, Mode::Poll, 1, fewer())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_four_relays_that_keep_a_table_are_killed() {
    tokio::join!(
        kill_keepers(Preset::Plane, Mode::Trigger, 4, fewer()),
        kill_keepers(Preset::Plane, Mode::Poll, 4, fewer())
    );
}

/// Every other table in both modes: for a soak, which has the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_1_relays_that_keep_any_table_are_killed() {
    if soak() == 1 {
        return kill_keepers(Preset::Debezium, Mode::Poll, 2, KILLS).await;
    }
    for mode in [Mode::Trigger, Mode::Poll] {
        for preset in Preset::ALL.into_iter().filter(|preset| *preset != Preset::Plane) {
            kill_keepers(preset, mode, 2, KILLS).await;
        }
    }
}
