//! `postrider dead retry` and `postrider dead discard`.

use clap::Args;
use postrider::log::parking::admin::{self, Act, Done, Matched, Parked, Selection};
use postrider::schema;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::selection::Which;
use super::{list, show};
use crate::commands::sinks;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// How many are shown before anything is done.
const SAMPLE: i64 = 5;

/// Try dead events again at once, with all their attempts before them
///
/// Without --yes it says how many events match, shows five of them, and exits with 2. Only the first event of a key can be retried: one
/// that waits behind another goes when that one is delivered or discarded.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider dead retry 0197f1c2-5b0a-7c3e-8a51-2f6d1f0f9a11 --yes
  postrider dead retry --sink web --error too_large --yes
  postrider dead retry --all                    how many that would be")]
pub(crate) struct Retry {
    #[command(flatten)]
    common: Common,
}

/// Delete dead events for good; the next event of the key goes
///
/// Without --yes it says how many events match, shows five of them, and exits with 2. A discarded event is never delivered to this sink.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider dead discard 0197f1c2-5b0a-7c3e-8a51-2f6d1f0f9a11 --yes
  postrider dead discard --sink web --type 'audit.*' --until 7d --yes")]
pub(crate) struct Discard {
    #[command(flatten)]
    common: Common,
}

impl Retry {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        self.common.run(Act::Retry, json).await
    }
}

impl Discard {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        self.common.run(Act::Discard, json).await
    }
}

#[derive(Args)]
struct Common {
    #[command(flatten)]
    target: Target,

    /// Ids of events
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    #[command(flatten)]
    which: Which,

    /// All there are
    #[arg(long, help_heading = "Selection", conflicts_with = "ids")]
    all: bool,

    /// Do it, instead of saying what would be done
    #[arg(long)]
    yes: bool,

    /// How many events in one transaction
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    batch: i64,
}

impl Common {
    async fn run(self, act: Act, json: bool) -> Result<Exit, Failure> {
        if self.ids.is_empty() && !self.which.is_set() && !self.all {
            let error = anyhow::anyhow!(
                "say which events: ids, or --sink, --key, --type, --error, --since, --until, or --all"
            );
            return Err(Failure::new(Exit::Usage, error));
        }
        let by_id = !self.ids.is_empty();
        let selection = self.which.selection(self.ids);
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let matched = admin::count(&mut connection, &selection).await?;
        if matched.events == 0 {
            if by_id {
                return Err(nothing_to_act_on(&mut connection, selection).await?);
            }
            if let Some(sink) = &selection.sink {
                sinks::require(&mut connection, sink).await?;
            }
            output::say("nothing matches");
            return finish(json, act, &matched, &[], None).map(|()| Exit::Fine);
        }
        let sample = admin::list(&mut connection, &selection, 0, SAMPLE).await?;
        tell(&matched, &sample);
        if !self.yes {
            finish(json, act, &matched, &sample, None)?;
            output::say(&format!("nothing was changed; with --yes they are {}", past(act)));
            return Ok(Exit::Found);
        }
        let total = matched.events;
        let done = admin::apply(&mut connection, &selection, &matched, act, self.batch, |done| {
            if total > self.batch {
                output::say(&format!("{} of {}", output::thousands(done.events), output::thousands(total)));
            }
        })
        .await?;
        output::say(&format!("{} {}", output::events(done.events), past(act)));
        if done.behind > 0 {
            output::say(&format!(
                "{} left alone: waiting behind an earlier one of the key; `postrider dead list --parked` says which",
                output::events(done.behind)
            ));
        }
        finish(json, act, &matched, &sample, Some(done))?;
        // Nothing could be done about what was asked for.
        Ok(if done.events == 0 { Exit::Found } else { Exit::Fine })
    }
}

/// An id that matches nothing among the dead may belong to an event that is only parked.
async fn nothing_to_act_on(connection: &mut PgConnection, selection: Selection) -> Result<Failure, Failure> {
    let any = Selection { ids: selection.ids.clone(), include_parked: true, ..Selection::default() };
    let parked = admin::list(connection, &any, 0, 1).await?;
    let Some(event) = parked.first() else {
        return Ok(show::not_found(&selection));
    };
    let error = anyhow::anyhow!(
        "event {} is parked at sink {:?} but does not match: it is {} ({}); --parked includes those that are not dead",
        event.id,
        event.sink,
        event.state.word(),
        list::why(event)
    );
    Ok(Failure::new(Exit::Failed, error))
}

fn past(act: Act) -> &'static str {
    match act {
        Act::Retry => "retried",
        Act::Discard => "discarded",
    }
}

fn tell(matched: &Matched, sample: &[Parked]) {
    let verb = if matched.events == 1 { "matches" } else { "match" };
    output::say(&format!("{} {verb}:", output::events(matched.events)));
    output::say(list::table(sample).trim_end());
    let more = matched.events - i64::try_from(sample.len()).unwrap_or(0);
    if more > 0 {
        output::say(&format!("… and {} more", output::thousands(more)));
    }
}

fn finish(
    json: bool,
    act: Act,
    matched: &Matched,
    sample: &[Parked],
    done: Option<Done>,
) -> Result<(), Failure> {
    if !json {
        return Ok(());
    }
    let sample: Vec<Value> = sample.iter().map(list::summary).collect();
    output::json(&json!({
        "matching": matched.events,
        "behind": matched.behind,
        "sample": sample,
        "done": done.is_some(),
        past(act): done.map_or(0, |done| done.events),
        "left_behind": done.map_or(0, |done| done.behind),
    }))
}
