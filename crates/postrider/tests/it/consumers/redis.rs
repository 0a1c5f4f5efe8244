//! Behind Redis.

use std::time::Duration;

use postrider::consume::{BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event};
use postrider::consumers::redis::Redis as Streams;
use postrider_testkit::{Broker, Redis};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use redis::{Pipeline, Value, cmd};

use super::far::{Dead, Far, Letter, unique};
use super::{Payment, contract, poison, storm, until};

/// `URL STREAM`
pub fn source(url: &str) -> Streams {
    let (url, stream) = url.split_once(' ').unwrap();
    Streams::new(url, [stream]).reclaim_after(Duration::from_millis(400))
}

pub struct Tested {
    url: String,
    stream: String,
    redis: MultiplexedConnection,
    _server: Broker<Redis>,
}

pub async fn tested() -> Tested {
    let server = Broker::shared(Redis::new()).await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let redis = client.get_multiplexed_async_connection().await.unwrap();
    Tested { url: server.url(), stream: unique("events"), redis, _server: server }
}

impl Far for Tested {
    type Source = Streams;

    fn kind(&self) -> &'static str {
        "redis"
    }

    fn url(&self) -> String {
        format!("{} {}", self.url, self.stream)
    }

    fn source(&self) -> Streams {
        source(&self.url())
    }

    fn prefix(&self) -> &'static str {
        "ce_"
    }

    async fn publish(&self, letters: &[Letter]) {
        for letters in letters.chunks(1_000) {
            let mut pipeline = Pipeline::new();
            for letter in letters {
                let add = pipeline.cmd("XADD").arg(&self.stream).arg("*").arg("key").arg(&letter.key);
                add.arg("content-type").arg(letter.content_type).arg("data").arg(&letter.body);
                add.arg(&letter.headers);
            }
            pipeline.query_async::<Vec<String>>(&mut self.redis.clone()).await.unwrap();
        }
    }

    async fn dead_letters(&self, consumer: &str) -> Vec<Dead> {
        let mut range = cmd("XRANGE");
        range.arg(format!("dead:{consumer}")).arg("-").arg("+");
        let found: StreamRangeReply = range.query_async(&mut self.redis.clone()).await.unwrap();
        let dead = |id: redis::streams::StreamId| {
            let field = |name: &str| match id.map.get(name) {
                Some(Value::BulkString(bytes)) => bytes.clone(),
                other => panic!("{name}: {other:?}"),
            };
            let text = |name: &str| String::from_utf8(field(name)).unwrap();
            Dead {
                reason: text("postrider-dead-reason"),
                consumer: text("postrider-dead-consumer"),
                body: field("data"),
            }
        };
        found.ids.into_iter().map(dead).collect()
    }

    async fn left(&self, consumer: &str) -> u64 {
        let mut groups = cmd("XINFO");
        groups.arg("GROUPS").arg(&self.stream);
        let found: Vec<std::collections::HashMap<String, Value>> =
            groups.query_async(&mut self.redis.clone()).await.unwrap();
        let of = |group: &std::collections::HashMap<String, Value>, name: &str| match group.get(name) {
            Some(Value::Int(count)) => u64::try_from(*count).unwrap(),
            other => panic!("{name}: {other:?}"),
        };
        let is_ours = |group: &&std::collections::HashMap<String, Value>| matches!(group.get("name"), Some(Value::BulkString(name)) if name == consumer.as_bytes());
        let group = found.iter().find(is_ours).expect("the group");
        of(group, "pending") + of(group, "lag")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_105_106_redis_consumers_that_die_anywhere_book_every_event_once() {
    storm::kills(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_inbox_a_ledger_behind_redis_is_wrong() {
    storm::without_inbox(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_107_poison_behind_redis_is_given_up_and_its_neighbours_are_not() {
    poison::poison(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_redis_cloudevents_in_headers_are_understood() {
    contract::binary(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_redis_a_key_is_never_overtaken() {
    contract::order_per_key(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_redis_a_connection_that_breaks_costs_nothing_but_time() {
    contract::reconnects(&tested().await, source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_redis_what_was_not_begun_is_given_back_at_the_end() {
    contract::drained(&tested().await).await;
    contract::deadline(&tested().await).await;
}

/// Where no relay runs, nobody else would.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_turns_the_ring_of_the_inbox() {
    let tested = tested().await;
    let (_database, pool) = super::ledger().await;
    let age = "update postrider.inbox_slots set opened_at = opened_at - interval '30 days', closed_at = closed_at - interval '30 days'";
    sqlx::raw_sql(age).execute(&pool).await.unwrap();
    let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
    let consumer = unique("keeper");
    let handler = async |_: &mut Tx, _: Event<Payment>| Ok::<_, BoxError>(Outcome::Done);
    let running =
        Consumer::new(pool.clone(), &consumer, tested.source()).run(async { drop(stopping.await) }, handler);
    let watching = async {
        let phase = "select coalesce(pg_sequence_last_value('postrider.inbox_phase'), 0)";
        until("the ring turns", async || {
            sqlx::query_scalar::<_, i64>(phase).fetch_one(&pool).await.unwrap() > 0
        })
        .await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
}
