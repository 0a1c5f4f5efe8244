//! `postrider rebase`: makes a log readable again after its database has become another one.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use postrider::log::rebase::{self, Again, Alive, Applied, Plan};
use postrider::schema;
use serde_json::{Value, json};

use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Make the log readable again after a restore, a switchover or a reset of its sequence
///
/// Cursors belong to one database cluster. A relay that finds them in another one, or finds its sequence set back, refuses to read,
/// because it would miss events or send everything again. A rebase gives the cursors a meaning here. It loses nothing: what is not
/// known to be delivered is sent again.
///
/// Without --yes it only says what would happen, and exits with 2 if a rebase is needed and 0 if not. Stop the relays first. Writers
/// may go on.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider rebase            what is wrong, and what each sink would be sent again
  postrider rebase --yes      do it")]
pub(crate) struct Rebase {
    #[command(flatten)]
    target: Target,

    /// Do it, instead of saying what would be done
    #[arg(long)]
    yes: bool,

    /// Take the lanes away from relays that seem to be at work: what they have in flight is sent again
    #[arg(long, requires = "yes")]
    overrule_readers: bool,

    /// How long transactions that have written events may take to end: they decide what is sent again
    #[arg(long, value_name = "SECONDS", requires = "yes", default_value_t = rebase::PATIENCE.as_secs())]
    wait: u64,
}

impl Rebase {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let plan = rebase::plan(&mut connection).await?;
        let Some(reason) = &plan.reason else {
            output::say("the log can be read as it is: nothing to do");
            if json {
                output::json(&planned(&plan))?;
            }
            return Ok(Exit::Fine);
        };
        output::say(&format!("a rebase is needed: {reason}"));
        if self.yes {
            let readers = if self.overrule_readers { Alive::Overrule } else { Alive::Refuse };
            let patience = Duration::from_secs(self.wait);
            let applied = rebase::apply_within(&mut connection, readers, patience).await?;
            let words = in_words(&applied.sinks);
            print(json, &words, &done(reason, &applied))?;
            output::say("done: the log can be read again");
            return Ok(Exit::Fine);
        }
        print(json, &in_words(&plan.sinks), &planned(&plan))?;
        if !plan.alive.is_empty() {
            output::say(&format!("stop these readers first: {}", plan.alive.join(", ")));
        }
        output::say("nothing was changed; `postrider rebase --yes` does it");
        Ok(Exit::Found)
    }
}

fn print(json: bool, words: &str, document: &Value) -> Result<(), Failure> {
    if json { output::json(document) } else { output::data(words) }
}

/// One line per sink.
fn in_words(sinks: &[Again]) -> String {
    let mut text = String::new();
    for again in sinks {
        let Again { sink, events, first, last } = again;
        let _ = match (events, first, last) {
            (0, ..) => writeln!(text, "{sink}: nothing is sent twice"),
            (1, Some(seq), _) => writeln!(text, "{sink}: 1 event (seq {seq}) may be sent twice"),
            (_, Some(first), Some(last)) => {
                writeln!(text, "{sink}: {events} events (seq {first} to {last}) may be sent twice")
            }
            _ => writeln!(text, "{sink}: {events} events may be sent twice"),
        };
    }
    if text.is_empty() {
        text.push_str("no sink has read this log: nothing is sent twice\n");
    }
    text
}

fn planned(plan: &Plan) -> Value {
    json!({
        "needed": plan.reason.is_some(),
        "done": false,
        "reason": plan.reason,
        "readers": plan.alive,
        "sinks": sinks(&plan.sinks),
    })
}

fn done(reason: &str, applied: &Applied) -> Value {
    json!({
        "needed": true,
        "done": true,
        "reason": reason,
        "moved": applied.moved,
        "last_seq": applied.last_seq,
        "sinks": sinks(&applied.sinks),
    })
}

fn sinks(sinks: &[Again]) -> Vec<Value> {
    let sink = |again: &Again| json!({ "sink": again.sink, "events": again.events, "first": again.first, "last": again.last });
    sinks.iter().map(sink).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_for_every_sink_what_may_be_sent_twice() {
        let again = |sink: &str, events, first, last| Again { sink: sink.to_owned(), events, first, last };
        let sinks = [
            again("kafka", 0, None, None),
            again("mail", 1, Some(7), Some(7)),
            again("web", 12, Some(3), Some(20)),
        ];
        assert_eq!(
            in_words(&sinks),
            "kafka: nothing is sent twice\n\
             mail: 1 event (seq 7) may be sent twice\n\
             web: 12 events (seq 3 to 20) may be sent twice\n"
        );
        assert!(in_words(&[]).starts_with("no sink"));
    }
}
