//! One transaction: what is asked, and what became of it.

use redis::{Pipeline, Value};

use super::config::RedisConfig;
use super::error::{Meaning, given_up, meaning};
use crate::sink::{Message, Outcome, Unavailable, UnavailableKind};
use crate::sinks::rounds::Stops;

/// The names of fields that are the sink's own: a header of that name gets another, so that whoever reads fields by name finds the right one.
const OWN: [&str; 5] = ["id", "type", "key", "content-type", "data"];

/// What stands around a transaction, at most: MULTI and EXEC.
const AROUND: u64 = 64;
/// What stands around the arguments of a command, at most: `*COUNT`, and its name.
const OF_COMMAND: u64 = 32;
/// What stands around an argument, at most: `$LENGTH` and two line ends. Of one that is queued the server counts eight bytes more.
const OF_ARGUMENT: u64 = 16;

/// How large an event is on its way, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// The largest of its values.
    pub(super) value: u64,
    /// All of it.
    pub(super) command: u64,
}

impl Size {
    pub(super) fn of(config: &RedisConfig, message: &Message<'_>) -> Self {
        let mut size = Self { value: 0, command: OF_COMMAND };
        arguments(config, message, |argument| {
            let length = argument.len() as u64;
            size.value = size.value.max(length);
            size.command += length + OF_ARGUMENT;
        });
        size
    }

    /// A transaction with this event alone.
    pub(super) fn alone(self) -> u64 {
        AROUND + self.command
    }
}

/// These places of a batch in transactions that have at most so many bytes, each to be executed before the next is sent. `sizes` has the
/// bytes of each event of the batch.
pub(super) fn pieces(places: Vec<usize>, sizes: &[u64], most: u64) -> Vec<Vec<usize>> {
    let mut pieces: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for place in places {
        let size = sizes[place];
        match pieces.last_mut() {
            Some(piece) if size <= room => {
                room -= size;
                piece.push(place);
            }
            _ => {
                room = most.saturating_sub(AROUND + size);
                pieces.push(vec![place]);
            }
        }
    }
    pieces
}

/// Adds each event to its stream.
pub(super) fn transaction<'a>(
    config: &RedisConfig,
    messages: impl Iterator<Item = &'a Message<'a>>,
) -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("MULTI");
    for message in messages {
        let add = pipeline.cmd("XADD");
        arguments(config, message, |argument| {
            add.arg(argument);
        });
    }
    pipeline.cmd("EXEC");
    pipeline
}

/// What `XADD` is told of an event, in order.
fn arguments(config: &RedisConfig, message: &Message<'_>, mut tell: impl FnMut(&[u8])) {
    let mut text = |text: &str| tell(text.as_bytes());
    text(&message.destination);
    if let Some(most) = config.max_len {
        ["MAXLEN", "~", &most.to_string()].into_iter().for_each(&mut text);
    }
    let id = message.id.to_string();
    ["*", "id", &id, "type", &message.record.r#type].into_iter().for_each(&mut text);
    if let Some(key) = &message.record.key {
        ["key", key].into_iter().for_each(&mut text);
    }
    ["content-type", message.content_type].into_iter().for_each(&mut text);
    for (name, value) in &message.headers {
        match name.as_str() {
            // The debezium envelope's; it is there already.
            "id" if *value == id => continue,
            name if OWN.contains(&name) => text(&format!("header:{name}")),
            name => text(name),
        }
        text(value);
    }
    text("data");
    tell(&message.body);
}

/// How a transaction ended.
pub(super) enum End {
    /// It was executed: each event of it has its outcome.
    Executed,
    /// Because of single events, which are refused now. Without them it may be executed.
    GivenUp,
}

/// From the answers to MULTI, to each event, and to EXEC.
pub(super) fn settle<'a>(
    batch: &'a [Message<'a>],
    group: &[usize],
    answers: &[Value],
    outcomes: &mut [Outcome],
    stops: &mut Stops<'a>,
) -> Result<End, Unavailable> {
    let [begun, queued @ .., executed] = answers else { return Err(strange()) };
    if let Value::ServerError(error) = begun {
        return Err(match meaning(error, "MULTI") {
            Meaning::Unavailable(why) => why,
            Meaning::Refused(refusal) => Unavailable::new(UnavailableKind::Blocked, refusal.reason),
        });
    }
    let (end, answers) = match executed {
        Value::Array(results) if results.len() == group.len() => (End::Executed, results.as_slice()),
        // Why stands with the events.
        Value::ServerError(_) if queued.len() == group.len() => (End::GivenUp, queued),
        _ => return Err(strange()),
    };
    let mut is_refused = false;
    for (&place, answer) in group.iter().zip(answers) {
        match (answer, &end) {
            (Value::ServerError(error), _) => match meaning(error, &batch[place].destination) {
                Meaning::Unavailable(why) => return Err(why),
                Meaning::Refused(_) if stops.is_behind(&batch[place], place) => {}
                Meaning::Refused(refusal) => {
                    is_refused = true;
                    outcomes[place] = Outcome::Refused(refusal);
                    stops.stop(&batch[place], place);
                }
            },
            (Value::BulkString(_) | Value::SimpleString(_), End::Executed) => {
                outcomes[place] = Outcome::Delivered;
            }
            (_, End::Executed) => return Err(strange()),
            (_, End::GivenUp) => {}
        }
    }
    match end {
        // Nothing would be different the next time.
        End::GivenUp if !is_refused => Err(match executed {
            Value::ServerError(error) => given_up(error).unwrap_or_else(strange),
            _ => strange(),
        }),
        end => Ok(end),
    }
}

fn strange() -> Unavailable {
    Unavailable::new(
        UnavailableKind::Connection,
        "Redis gave an answer to a transaction that cannot be understood",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::planned::{batch, records};

    #[test]
    fn an_event_is_measured_by_all_that_is_sent_of_it() {
        let events = [(Some("a"), "events"), (Some("a"), "events")];
        let records = records(&events);
        let mut batch = batch(&records, &events);
        batch[0].headers = vec![("id".to_owned(), "8".to_owned()), ("big".to_owned(), "x".repeat(70_000))];
        batch[1].body = vec![b'x'; 90_000];
        let config = RedisConfig { max_len: Some(1000), ..RedisConfig::new("redis://a") };
        let sizes = [&batch[0], &batch[1]].map(|message| Size::of(&config, message));
        assert_eq!(sizes.map(|size| size.value), [70_000, 90_000]);
        // Never less than what is sent, and of a large one little more.
        let sent = transaction(&config, batch.iter()).get_packed_pipeline().len() as u64;
        let expected = AROUND + sizes[0].command + sizes[1].command;
        assert!(
            (sent..sent + 1000).contains(&expected),
            "{sent} bytes are sent, and {expected} were expected"
        );
    }

    #[test]
    fn a_transaction_stays_below_what_the_server_takes() {
        let sizes = [10, 10, 30, 10, 100, 1];
        let cases: [(u64, &[&[usize]]); 4] = [
            (1000, &[&[0, 1, 2, 4, 5]]),
            (AROUND + 50, &[&[0, 1, 2], &[4], &[5]]),
            (AROUND + 20, &[&[0, 1], &[2], &[4], &[5]]),
            (0, &[&[0], &[1], &[2], &[4], &[5]]),
        ];
        for (most, expected) in cases {
            assert_eq!(pieces(vec![0, 1, 2, 4, 5], &sizes, most), expected, "{most}");
        }
        assert!(pieces(Vec::new(), &sizes, 1000).is_empty());
    }
}
