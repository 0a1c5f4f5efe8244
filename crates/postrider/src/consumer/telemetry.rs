//! What is counted and timed about a consumer, through the `metrics` facade.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Duplicate,
    Filtered,
    Failed,
    Dead,
}

const ENDS: [(End, &str); 5] = [
    (End::Done, "done"),
    (End::Duplicate, "duplicate"),
    (End::Filtered, "filtered"),
    (End::Failed, "failed"),
    (End::Dead, "dead"),
];

/// The metrics of one consumer.
#[derive(Debug)]
pub(super) struct Telemetry {
    ends: Vec<(End, Counter)>,
    handling: Histogram,
    in_hand: Gauge,
    connected: Gauge,
    reconnects: Counter,
    refused_letters: Counter,
    kept_letters: Counter,
}

impl Telemetry {
    pub(super) fn new(consumer: &str, broker: &'static str) -> Self {
        metrics::describe_counter!("postrider_consumer_messages_total", "Messages by what became of them");
        metrics::describe_histogram!(
            "postrider_consumer_handling_seconds",
            "From the begin of the transaction to the acknowledgement"
        );
        metrics::describe_gauge!("postrider_consumer_in_hand", "Messages delivered and not settled");
        metrics::describe_gauge!(
            "postrider_consumer_connected",
            "Whether there is a connection to the broker"
        );
        metrics::describe_counter!("postrider_consumer_reconnects_total", "Connections that were lost");
        metrics::describe_counter!(
            "postrider_consumer_refused_letters_total",
            "Dead letters that the broker did not take, each time"
        );
        metrics::describe_counter!(
            "postrider_consumer_kept_letters_total",
            "Dead letters that the database keeps because the broker does not"
        );
        let labels = [("consumer", consumer.to_owned()), ("broker", broker.to_owned())];
        // Every end from the start at 0: an alarm on an increase would not see a counter that appears with 1.
        let ends = ENDS.map(|(end, name)| {
            let of = [labels[0].clone(), labels[1].clone(), ("outcome", name.to_owned())];
            (end, metrics::counter!("postrider_consumer_messages_total", &of))
        });
        Self {
            ends: ends.into(),
            handling: metrics::histogram!("postrider_consumer_handling_seconds", &labels),
            in_hand: metrics::gauge!("postrider_consumer_in_hand", &labels),
            connected: metrics::gauge!("postrider_consumer_connected", &labels),
            reconnects: metrics::counter!("postrider_consumer_reconnects_total", &labels),
            refused_letters: metrics::counter!("postrider_consumer_refused_letters_total", &labels),
            kept_letters: metrics::counter!("postrider_consumer_kept_letters_total", &labels),
        }
    }

    pub(super) fn ended(&self, end: End) {
        for (_, counter) in self.ends.iter().filter(|(of, _)| *of == end) {
            counter.increment(1);
        }
    }

    pub(super) fn took(&self, time: Duration) {
        self.handling.record(time);
    }

    pub(super) fn in_hand(&self, messages: usize) {
        self.in_hand.set(f64::from(u32::try_from(messages).unwrap_or(u32::MAX)));
    }

    pub(super) fn connected(&self) {
        self.connected.set(1.0);
    }

    pub(super) fn letter_refused(&self) {
        self.refused_letters.increment(1);
    }

    pub(super) fn letter_kept(&self) {
        self.kept_letters.increment(1);
    }

    /// Nothing is connected or in hand any more.
    pub(super) fn over(&self) {
        self.connected.set(0.0);
        self.in_hand.set(0.0);
    }

    pub(super) fn lost(&self) {
        self.connected.set(0.0);
        self.reconnects.increment(1);
    }
}
