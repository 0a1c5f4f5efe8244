//! One transaction: what is asked, and what became of it.

use redis::{Pipeline, Value};

use super::config::RedisConfig;
use super::error::{Meaning, meaning};
use crate::sink::{Message, Outcome, Unavailable, UnavailableKind};
use crate::sinks::rounds::Stops;

/// The names of fields that are the sink's own: a header of that name gets another, so that whoever reads fields by name finds the right one.
const OWN: [&str; 5] = ["id", "type", "key", "content-type", "data"];

/// Adds each event to its stream.
pub(super) fn transaction<'a>(
    config: &RedisConfig,
    messages: impl Iterator<Item = &'a Message<'a>>,
) -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("MULTI");
    for message in messages {
        let add = pipeline.cmd("XADD").arg(&message.destination);
        if let Some(most) = config.max_len {
            add.arg("MAXLEN").arg("~").arg(most);
        }
        let id = message.id.to_string();
        add.arg("*").arg("id").arg(&id).arg("type").arg(&message.record.r#type);
        if let Some(key) = &message.record.key {
            add.arg("key").arg(key);
        }
        add.arg("content-type").arg(message.content_type);
        for (name, value) in &message.headers {
            match name.as_str() {
                // The debezium envelope's; it is there already.
                "id" if *value == id => {}
                name if OWN.contains(&name) => _ = add.arg(format!("header:{name}")).arg(value),
                name => _ = add.arg(name).arg(value),
            }
        }
        add.arg("data").arg(message.body.as_slice());
    }
    pipeline.cmd("EXEC");
    pipeline
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
        End::GivenUp if !is_refused => Err(strange()),
        end => Ok(end),
    }
}

fn strange() -> Unavailable {
    Unavailable::new(
        UnavailableKind::Connection,
        "Redis gave an answer to a transaction that cannot be understood",
    )
}
