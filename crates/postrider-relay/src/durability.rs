//! What a confirmation is worth: whether an event that a sink has confirmed is still there when something breaks over there. One table.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// From A, which nothing that happens to one machine takes away, to F, which keeps nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema)]
pub enum Grade {
    /// Several servers have it before it is confirmed.
    A,
    /// It is on the disk of one server before it is confirmed.
    B,
    /// It survives the end of the server's process; of the last moments before a loss of power nothing is certain.
    C,
    /// It is kept until there is no room for it, whether it was read or not.
    D,
    /// It is in memory alone.
    E,
    /// Nobody keeps it, or nobody can say.
    F,
}

impl Grade {
    /// All of them, the best first.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    /// What it means.
    pub const fn means(self) -> &'static str {
        match self {
            Self::A => "several servers have it before it is confirmed",
            Self::B => "it is on the disk of one server before it is confirmed",
            Self::C => {
                "it survives the end of the server's process; of the last moments before a loss of power nothing is certain"
            }
            Self::D => "it is kept until there is no room for it, whether it was read or not",
            Self::E => "it is in memory alone",
            Self::F => "nobody keeps it, or nobody can say",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What makes a confirmation worth less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Weakness {
    /// The file sink, at its best.
    FileOnOneDisk,
    /// `fsync: never`.
    FileNotSynced,
    /// Standard output, and `null`.
    NotKept,
    /// A stream with one replica.
    NatsOneServer,
    /// A stream that is full drops what is oldest.
    NatsDiscardsOld,
    /// A stream that keeps messages for its consumers, and has none that stays.
    NatsNoConsumer,
    /// A stream that keeps messages for its consumers, none of which asks for some of its subjects.
    NatsNotAskedFor,
    /// A stream in memory.
    NatsInMemory,
    /// A quorum queue with one member.
    RabbitMqOneMember,
    /// A classic queue, or a stream with one replica.
    RabbitMqOneNode,
    /// A queue with a limit that drops what is oldest.
    RabbitMqDropsHead,
    /// A queue whose messages expire, with nowhere to go.
    RabbitMqMessagesExpire,
    /// A queue that is deleted when nobody uses it.
    RabbitMqQueueGoes,
    /// A queue of one connection.
    RabbitMqExclusive,
    /// A queue that is not durable.
    RabbitMqTransient,
    /// An exchange without any queue.
    RabbitMqNoQueue,
    /// There is no management to ask.
    RabbitMqUnknown,
    /// A Kafka topic with one replica.
    KafkaOneReplica,
    /// `min.insync.replicas` 1.
    KafkaOneInSync,
    /// `unclean.leader.election.enable`.
    KafkaUncleanElection,
    /// `retention.bytes`.
    KafkaLimited,
    /// `cleanup.policy` compact.
    KafkaCompacts,
    /// There is no topic, or the brokers do not let us look.
    KafkaUnknown,
    /// Redis, at its best.
    RedisOneServer,
    /// `appendfsync everysec`.
    RedisEverySecond,
    /// `appendfsync no`.
    RedisNotSynced,
    /// `no-appendfsync-on-rewrite yes`.
    RedisSyncPauses,
    /// A `maxmemory-policy` that evicts.
    RedisEvicts,
    /// `max_len` in our own configuration.
    RedisCutsStreams,
    /// `appendonly no`.
    RedisInMemory,
    /// The server does not let us look.
    RedisUnknown,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The kind of sink.
    pub sink: &'static str,
    /// No better than this.
    pub grade: Grade,
    /// What was found.
    pub what: &'static str,
    /// What makes it better; empty where nothing does.
    pub remedy: &'static str,
}

impl Weakness {
    /// Every one there is.
    pub const ALL: [Self; 31] = [
        Self::FileOnOneDisk,
        Self::FileNotSynced,
        Self::NotKept,
        Self::NatsOneServer,
        Self::NatsDiscardsOld,
        Self::NatsInMemory,
        Self::NatsNoConsumer,
        Self::NatsNotAskedFor,
        Self::RabbitMqOneMember,
        Self::RabbitMqOneNode,
        Self::RabbitMqDropsHead,
        Self::RabbitMqMessagesExpire,
        Self::RabbitMqQueueGoes,
        Self::RabbitMqExclusive,
        Self::RabbitMqTransient,
        Self::RabbitMqNoQueue,
        Self::RabbitMqUnknown,
        Self::KafkaOneReplica,
        Self::KafkaOneInSync,
        Self::KafkaUncleanElection,
        Self::KafkaLimited,
        Self::KafkaCompacts,
        Self::KafkaUnknown,
        Self::RedisOneServer,
        Self::RedisEverySecond,
        Self::RedisNotSynced,
        Self::RedisSyncPauses,
        Self::RedisEvicts,
        Self::RedisCutsStreams,
        Self::RedisInMemory,
        Self::RedisUnknown,
    ];

    /// Its row.
    #[expect(clippy::too_many_lines, reason = "one table")]
    pub const fn row(self) -> Row {
        let (sink, grade, what, remedy) = match self {
            Self::FileOnOneDisk => ("file", Grade::B, "one file on one disk", "none here: copy it elsewhere"),
            Self::FileNotSynced => ("file", Grade::C, "`fsync: never`", "take `fsync: batch`"),
            Self::NotKept => ("stdout, null", Grade::F, "it is passed on, or dropped", "take another sink"),
            Self::NatsOneServer => (
                "nats",
                Grade::C,
                "the stream is kept by one server, which confirms before the disk has it",
                "keep it on three: `nats stream edit --replicas 3`",
            ),
            Self::NatsDiscardsOld => (
                "nats",
                Grade::D,
                "the stream has a limit and drops what is oldest when it is reached (`discard: old`, or `max_msgs_per_subject` without `discard_new_per_subject`)",
                "let it refuse what is new: `discard: new`, and for a limit per subject `discard_new_per_subject: true`",
            ),
            Self::NatsInMemory => (
                "nats",
                Grade::E,
                "the stream is in memory (`storage: memory`)",
                "make one with `storage: file`; a stream cannot change it",
            ),
            Self::NatsNoConsumer => (
                "nats",
                Grade::F,
                "the stream keeps messages for its consumers alone, and has no durable one (`retention: interest`)",
                "make a durable consumer first, or a stream with `retention: limits`",
            ),
            Self::NatsNotAskedFor => (
                "nats",
                Grade::F,
                "the stream keeps messages for its consumers alone, and what no durable one asks for is not kept (`retention: interest`, with `filter_subject`)",
                "make a durable consumer without a filter, or a stream with `retention: limits`",
            ),
            Self::RabbitMqOneMember => (
                "rabbitmq",
                Grade::B,
                "a quorum queue has one member",
                "give it three, on three nodes: `rabbitmq-queues grow`",
            ),
            Self::RabbitMqOneNode => (
                "rabbitmq",
                Grade::C,
                "a classic queue, or a stream with one replica: one node has it, and confirms before the disk does",
                "take a quorum queue (`x-queue-type: quorum`) on three nodes",
            ),
            Self::RabbitMqDropsHead => (
                "rabbitmq",
                Grade::D,
                "a queue has a limit and drops what is oldest when it is reached (`overflow: drop-head`; a quorum queue also with `reject-publish-dlx`; a stream with `max-length-bytes`)",
                "let it refuse what is new (`overflow: reject-publish`), or give it a dead-letter exchange",
            ),
            Self::RabbitMqMessagesExpire => (
                "rabbitmq",
                Grade::D,
                "a queue drops messages that nobody has read in time (`message-ttl`)",
                "take the limit away, or give the queue a dead-letter exchange",
            ),
            Self::RabbitMqQueueGoes => (
                "rabbitmq",
                Grade::E,
                "a queue is deleted, with what is in it, when nobody uses it (`auto-delete`, `expires`)",
                "declare it without",
            ),
            Self::RabbitMqExclusive => (
                "rabbitmq",
                Grade::E,
                "a queue belongs to one connection and goes with it (`exclusive`)",
                "declare it without",
            ),
            Self::RabbitMqTransient => (
                "rabbitmq",
                Grade::E,
                "a queue does not survive a restart of its node (it is not `durable`)",
                "declare it durable; a queue cannot change it",
            ),
            Self::RabbitMqNoQueue => ("rabbitmq", Grade::F, "no queue is bound to the exchange", "bind one"),
            Self::RabbitMqUnknown => (
                "rabbitmq",
                Grade::F,
                "nobody can say what the queues do: AMQP itself does not tell",
                "set `management` to the address of the server's management plugin",
            ),
            Self::KafkaOneReplica => (
                "kafka",
                Grade::C,
                "the topic is kept by one broker, which confirms before the disk has it",
                "keep it on three: a replication factor of 3, and `min.insync.replicas=2`",
            ),
            Self::KafkaOneInSync => (
                "kafka",
                Grade::C,
                "one broker alone may confirm while the others are behind (`min.insync.replicas=1`)",
                "set `min.insync.replicas=2` for the topic",
            ),
            Self::KafkaUncleanElection => (
                "kafka",
                Grade::C,
                "a broker that is behind may take over, and what it has not is gone (`unclean.leader.election.enable`)",
                "set `unclean.leader.election.enable=false`",
            ),
            Self::KafkaLimited => (
                "kafka",
                Grade::D,
                "the topic has a limit and drops what is oldest when it is reached (`retention.bytes`)",
                "set `retention.bytes=-1`, and keep events by time",
            ),
            Self::KafkaCompacts => (
                "kafka",
                Grade::D,
                "of each key only the last event stays (`cleanup.policy=compact`)",
                "set `cleanup.policy=delete`, unless that is what consumers want",
            ),
            Self::KafkaUnknown => (
                "kafka",
                Grade::F,
                "there is no topic yet, or the brokers do not let this user look at its settings",
                "name them in `topics`, make them, and allow the user `DescribeConfigs`",
            ),
            Self::RedisOneServer => (
                "redis",
                Grade::B,
                "one server has it when it is confirmed; replicas get it later",
                "none in Redis: take another broker for what must survive a machine",
            ),
            Self::RedisEverySecond => (
                "redis",
                Grade::C,
                "the disk has it within a second (`appendfsync everysec`)",
                "set `appendfsync always`",
            ),
            Self::RedisNotSynced => (
                "redis",
                Grade::C,
                "the disk has it when the operating system likes (`appendfsync no`)",
                "set `appendfsync always`",
            ),
            Self::RedisSyncPauses => (
                "redis",
                Grade::C,
                "the disk has it later while the server writes its log anew (`no-appendfsync-on-rewrite yes`)",
                "set `no-appendfsync-on-rewrite no`",
            ),
            Self::RedisEvicts => (
                "redis",
                Grade::D,
                "the server removes keys when its memory is full (`maxmemory-policy`)",
                "set `maxmemory-policy noeviction`: it refuses then, and the log waits",
            ),
            Self::RedisCutsStreams => (
                "redis",
                Grade::D,
                "streams are cut, whether they were read or not (`max_len`)",
                "leave `max_len` out, and cut them by what consumers have read",
            ),
            Self::RedisInMemory => (
                "redis",
                Grade::E,
                "the server writes no log (`appendonly no`)",
                "set `appendonly yes` and `appendfsync always`",
            ),
            Self::RedisUnknown => (
                "redis",
                Grade::F,
                "the server does not let this user look at its settings",
                "allow it `+config|get`",
            ),
        };
        Row { sink, grade, what, remedy }
    }
}

/// What is known of one sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durability {
    /// The worst first.
    pub weaknesses: Vec<Weakness>,
}

impl Durability {
    /// With these.
    pub fn new(weaknesses: impl IntoIterator<Item = Weakness>) -> Self {
        let mut weaknesses: Vec<Weakness> = weaknesses.into_iter().collect();
        weaknesses.sort_by_key(|weakness| std::cmp::Reverse(weakness.row().grade));
        Self { weaknesses }
    }

    /// As good as its worst.
    pub fn grade(&self) -> Grade {
        self.weaknesses.first().map_or(Grade::A, |worst| worst.row().grade)
    }

    /// What keeps it from being as good as that; the worst first.
    pub fn below(&self, required: Grade) -> Vec<Row> {
        self.weaknesses.iter().map(|weakness| weakness.row()).filter(|row| row.grade > required).collect()
    }

    /// Why it is not as good as required, and what to do, or `None` if it is.
    pub fn objection(&self, required: Grade) -> Option<String> {
        let below = self.below(required);
        let reasons: Vec<String> = below.iter().map(|row| format!("{} ({})", row.what, row.remedy)).collect();
        (!below.is_empty()).then(|| {
            format!(
                "its durability is {} and `require_durability` is {required}: {}",
                self.grade(),
                reasons.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_as_good_as_its_worst() {
        assert_eq!(Durability::default().grade(), Grade::A);
        let redis =
            Durability::new([Weakness::RedisOneServer, Weakness::RedisInMemory, Weakness::RedisEvicts]);
        assert_eq!(redis.grade(), Grade::E);
        assert_eq!(redis.below(Grade::D).len(), 1);
        assert_eq!(redis.objection(Grade::E), None);
        let objection = redis.objection(Grade::B).unwrap();
        assert!(
            objection.contains("is E")
                && objection.contains("appendonly")
                && objection.contains("noeviction")
        );
    }
}
