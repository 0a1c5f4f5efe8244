//! `postrider sinks`: pause, resume and forget.

mod pause;

use clap::{Args, Subcommand};
use postrider::log::error::Result as LogResult;
use postrider::log::sink;
use postrider::schema;
use postrider_relay::units::Span;
use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};
use time::OffsetDateTime;

use super::status::{self, Sink};
use crate::config;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// List the sinks that the log knows; pause, resume or forget one
///
/// A sink is known from its first run on, and holds its undelivered events, until it is forgotten, also when it was taken out of the
/// configuration.
#[derive(Args)]
pub(crate) struct Sinks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the sinks
    List(List),
    /// Deliver nothing to a sink until it is resumed; its events stay in the log
    ///
    /// Waits until each relay that feeds it has noticed and nothing is on its way to the sink any more; if one does not say so in
    /// time, it is named, and the exit status is 2.
    Pause(Pause),
    /// Deliver again
    Resume(Name),
    /// Give up what a sink has not been sent, and everything known about it
    ///
    /// Without --yes it says what would be lost, and exits with 2. A relay that is still configured to feed the sink creates it again,
    /// where its start says: take it out of the configuration first.
    Forget(Forget),
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
struct Name {
    #[command(flatten)]
    target: Target,

    /// The sink
    #[arg(value_name = "NAME")]
    sink: String,
}

#[derive(Args)]
struct Pause {
    #[command(flatten)]
    name: Name,

    /// How long to wait for the relays that feed it
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    wait: Span,
}

#[derive(Args)]
struct Forget {
    #[command(flatten)]
    name: Name,

    /// Do it, instead of saying what would be lost
    #[arg(long)]
    yes: bool,

    /// Although a relay reads it
    #[arg(long, requires = "yes")]
    overrule_readers: bool,
}

impl Sinks {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        match self.command {
            Command::List(command) => list(&command, json).await,
            Command::Pause(command) => pause::run(&command, json).await,
            Command::Resume(name) => resume(&name, json).await,
            Command::Forget(command) => forget(&command, json).await,
        }
    }
}

async fn open(target: &Target) -> Result<PgConnection, Failure> {
    let mut connection = target.connect().await?;
    schema::check_version(&mut connection).await?;
    Ok(connection)
}

async fn list(command: &List, json: bool) -> Result<Exit, Failure> {
    let outline = config::outline(&command.target.source)?;
    let mut connection = open(&command.target).await?;
    let seen = status::gather(&mut connection).await?;
    let word = |sink: &Sink| status::state(sink, &seen.slots, &outline).word;
    if json {
        let sinks: Vec<Value> = seen
            .sinks
            .iter()
            .map(|sink| {
                json!({
                    "sink": sink.delivery.sink,
                    "state": word(sink),
                    "created_at": moment::text(sink.delivery.created_at),
                    "paused_at": sink.delivery.paused_at.map(moment::text),
                    "readers": sink.delivery.readers,
                })
            })
            .collect();
        output::json(&json!({ "sinks": sinks }))?;
        return Ok(Exit::Fine);
    }
    if seen.sinks.is_empty() {
        output::say("none: the first `postrider run` creates them");
        return Ok(Exit::Fine);
    }
    let rows: Vec<Vec<String>> = seen
        .sinks
        .iter()
        .map(|sink| {
            let since = |moment: Option<OffsetDateTime>| moment.map_or_else(|| "-".to_owned(), moment::short);
            let readers = sink.delivery.readers.join(", ");
            vec![
                output::plain(&sink.delivery.sink),
                word(sink).to_owned(),
                moment::short(sink.delivery.created_at),
                since(sink.delivery.paused_at),
                if readers.is_empty() { "-".to_owned() } else { output::plain(&readers) },
            ]
        })
        .collect();
    output::data(&output::table(&["SINK", "STATE", "SINCE", "PAUSED", "CARRIED BY"], &rows))?;
    Ok(Exit::Fine)
}

async fn resume(name: &Name, json: bool) -> Result<Exit, Failure> {
    let mut connection = open(&name.target).await?;
    let Some((before, _)) = store_paused(&mut connection, &name.sink, false).await? else {
        return Err(unknown(&mut connection, &name.sink).await?);
    };
    let sink = output::plain(&name.sink);
    let word = if before.is_some() { "resumed" } else { "not paused" };
    output::say(&format!("{sink} is {word}"));
    if json {
        output::json(&json!({ "sink": name.sink, "paused_at": null, "changed": before.is_some() }))?;
    }
    Ok(Exit::Fine)
}

/// Since when it was paused before and is now; `None` if there is no such sink.
async fn store_paused(
    connection: &mut PgConnection,
    sink: &str,
    paused: bool,
) -> LogResult<Option<(Option<OffsetDateTime>, Option<OffsetDateTime>)>> {
    let row = sqlx::query(
        "with before as (select sink, paused_at from postrider.sinks where name = $1 for no key update)
         update postrider.sinks s set paused_at = case when $2 then coalesce(b.paused_at, clock_timestamp()) end
         from before b where s.sink = b.sink
         returning b.paused_at, s.paused_at",
    )
    .bind(sink)
    .bind(paused)
    .fetch_optional(connection)
    .await?;
    Ok(match row {
        Some(row) => Some((row.try_get(0)?, row.try_get(1)?)),
        None => None,
    })
}

/// A name that is mistyped must not look as if nothing were there.
pub(crate) async fn require(connection: &mut PgConnection, sink: &str) -> Result<(), Failure> {
    let is_known: bool = sqlx::query_scalar("select exists (select from postrider.sinks where name = $1)")
        .bind(sink)
        .fetch_one(&mut *connection)
        .await
        .map_err(postrider::log::Error::from)?;
    if is_known { Ok(()) } else { Err(unknown(connection, sink).await?) }
}

async fn unknown(connection: &mut PgConnection, sink: &str) -> LogResult<Failure> {
    let names: Vec<String> =
        sqlx::query_scalar("select name from postrider.sinks order by name").fetch_all(connection).await?;
    let known =
        if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", names.join(", ")) };
    Ok(Failure::new(Exit::Failed, anyhow::anyhow!("the log knows no sink {sink:?}; {known}")))
}

async fn forget(command: &Forget, json: bool) -> Result<Exit, Failure> {
    let name = &command.name.sink;
    let mut connection = open(&command.name.target).await?;
    let seen = status::gather(&mut connection).await?;
    let Some(sink) = seen.sinks.into_iter().find(|sink| sink.delivery.sink == *name) else {
        return Err(unknown(&mut connection, name).await?);
    };
    let (backlog, delivery) = (sink.backlog(), &sink.delivery);
    let readers: Vec<&str> = delivery.readers.iter().chain(&delivery.standby).map(String::as_str).collect();
    let is_read = !readers.is_empty() && !command.overrule_readers;
    let lost = format!(
        "{}: {}{} not delivered, {} parked and {} dead",
        output::plain(name),
        if backlog.is_exact { "" } else { "at least " },
        output::events(backlog.events),
        output::thousands(delivery.waiting + delivery.behind),
        output::thousands(delivery.dead),
    );
    // Not before it is true: whoever may not forget it has lost nothing.
    if !command.yes || is_read {
        output::say(&format!("{lost} would be given up"));
    }
    if is_read {
        let readers = output::plain(&readers.join(", "));
        if command.yes {
            let error = anyhow::anyhow!(
                "{readers} reads sink {name:?}: take the sink out of the configuration or stop the relay first; \
                 --overrule-readers forgets it all the same"
            );
            return Err(Failure::new(Exit::Failed, error));
        }
        output::say(&format!("{readers} reads it: take it out of the configuration or stop the relay first"));
    }
    if command.yes {
        sink::forget(&mut connection, name).await?;
        output::say(&format!("{lost} were given up; the sink is forgotten"));
    } else {
        output::say(&format!("nothing was changed; `postrider sinks forget {name} --yes` does it"));
    }
    if json {
        output::json(&json!({
            "sink": name,
            "done": command.yes,
            "undelivered": { "events": backlog.events, "is_exact": backlog.is_exact },
            "parked": delivery.waiting + delivery.behind,
            "dead": delivery.dead,
            "readers": readers,
        }))?;
    }
    Ok(if command.yes { Exit::Fine } else { Exit::Found })
}
