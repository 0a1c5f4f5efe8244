//! `postrider inbox`: which events consumers have had.

use clap::{Args, Subcommand};
use postrider::inbox::{self, Seen, Size, Stats};
use postrider::schema;
use postrider_relay::units::Span;
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// Look at the inbox: which events each consumer has had
///
/// A broker may deliver a message twice; the inbox is why it takes effect once. It forgets an id when it is older than its retention, but
/// never before the log has forgotten the event.
#[derive(Args)]
pub(crate) struct Inbox {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how much is remembered for each consumer, for how long, and how large that is
    Stats(Look),
    /// List ids, the newest first
    List(List),
    /// Forget an event of a consumer, or all of them: the next delivery takes effect again
    ///
    /// Without --yes it says what would be forgotten, and exits with 2. Where there is nothing to forget it exits with 1.
    Forget(Forget),
    /// Set for how long ids are remembered
    ///
    /// Longer than a message can live in the broker, dead-letter queues included. While it is shorter than log.retention, that counts; where no
    /// relay has noted that, it says so.
    Keep(Keep),
}

#[derive(Args)]
struct Look {
    #[command(flatten)]
    target: Target,
}

#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider inbox list --consumer billing
  postrider inbox list --id 0195f3c2-6b1e-7d1a-9c39-0f2a4b5c6d7e      who has had it, and when")]
struct List {
    #[command(flatten)]
    target: Target,

    /// Only of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,

    /// Only this event
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// How many to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Args)]
struct Forget {
    #[command(flatten)]
    target: Target,

    /// The consumer
    consumer: String,

    /// The event; all of them if it is left out
    id: Option<String>,

    /// Do it, instead of saying what would be forgotten
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct Keep {
    #[command(flatten)]
    target: Target,

    /// For so long, such as 30d
    retention: Span,
}

impl Inbox {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        match self.command {
            Command::Stats(command) => stats(&command, json).await,
            Command::List(command) => list(&command, json).await,
            Command::Forget(command) => forget(&command, json).await,
            Command::Keep(command) => keep(&command, json).await,
        }
    }
}

async fn open(target: &Target) -> Result<PgConnection, Failure> {
    let mut connection = target.connect().await?;
    schema::check_version(&mut connection).await?;
    Ok(connection)
}

async fn stats(command: &Look, json: bool) -> Result<Exit, Failure> {
    let mut connection = open(&command.target).await?;
    let size = inbox::size(&mut connection).await?;
    let consumers = inbox::stats(&mut connection).await?;
    if json {
        output::json(&json!({
            "retention_seconds": size.retention,
            "log_retention_seconds": size.log_retention,
            "bytes": size.bytes,
            "consumers": consumers.iter().map(of_consumer).collect::<Vec<_>>(),
        }))?;
        return Ok(Exit::Fine);
    }
    if !consumers.is_empty() {
        let rows: Vec<Vec<String>> = consumers
            .iter()
            .map(|stats| {
                vec![
                    output::plain(&stats.consumer),
                    output::thousands(stats.ids),
                    moment::short(stats.oldest),
                    moment::short(stats.newest),
                ]
            })
            .collect();
        output::data(&output::table(&["CONSUMER", "IDS", "OLDEST", "NEWEST"], &rows))?;
    }
    output::say(&remembered(&size));
    Ok(Exit::Fine)
}

/// For how long, and why.
fn remembered(size: &Size) -> String {
    let kept = moment::span(moment::seconds(size.retention));
    let because = match size.log_retention {
        Some(log) if log > size.retention => {
            format!(
                " is set, but the log keeps events for {}, and that counts",
                moment::span(moment::seconds(log))
            )
        }
        _ => String::new(),
    };
    format!("ids are remembered for {kept}{because}; {} bytes", output::thousands(size.bytes))
}

fn of_consumer(stats: &Stats) -> Value {
    json!({
        "consumer": stats.consumer,
        "ids": stats.ids,
        "oldest": moment::text(stats.oldest),
        "newest": moment::text(stats.newest),
    })
}

async fn list(command: &List, json: bool) -> Result<Exit, Failure> {
    let mut connection = open(&command.target).await?;
    let seen =
        inbox::list(&mut connection, command.consumer.as_deref(), command.id.as_deref(), command.limit)
            .await?;
    if json {
        let ids: Vec<Value> = seen
            .iter()
            .map(|seen| json!({ "consumer": seen.consumer, "id": seen.event_id, "seen_at": moment::text(seen.seen_at) }))
            .collect();
        output::json(&json!({ "ids": ids }))?;
        return Ok(Exit::Fine);
    }
    if seen.is_empty() {
        output::say("none");
        return Ok(Exit::Fine);
    }
    let row = |seen: &Seen| {
        vec![output::plain(&seen.event_id), output::plain(&seen.consumer), moment::short(seen.seen_at)]
    };
    let rows: Vec<Vec<String>> = seen.iter().map(row).collect();
    output::data(&output::table(&["ID", "CONSUMER", "SEEN"], &rows))?;
    Ok(Exit::Fine)
}

async fn forget(command: &Forget, json: bool) -> Result<Exit, Failure> {
    let mut connection = open(&command.target).await?;
    let (consumer, id) = (command.consumer.as_str(), command.id.as_deref());
    let ids = if command.yes {
        inbox::forget(&mut connection, consumer, id).await?
    } else {
        inbox::count(&mut connection, consumer, id).await?
    };
    let name = output::plain(consumer);
    let words = if ids == 1 { "1 id".to_owned() } else { format!("{} ids", output::thousands(ids)) };
    if ids == 0 {
        // Whoever publishes a dead letter again behind a mistyped name would lose it: it is still a duplicate.
        output::say(&format!(
            "{name}: there is nothing to forget; `postrider inbox list` shows what is remembered of whom"
        ));
    } else if command.yes {
        output::say(&format!("{name}: {words} forgotten; the next delivery takes effect again"));
    } else {
        output::say(&format!(
            "{name}: {words} would be forgotten, and the next delivery would take effect again; --yes does it"
        ));
    }
    if json {
        output::json(&json!({ "consumer": consumer, "id": id, "ids": ids, "done": command.yes }))?;
    }
    Ok(match (ids, command.yes) {
        (0, _) => Exit::Failed,
        (_, true) => Exit::Fine,
        (_, false) => Exit::Found,
    })
}

async fn keep(command: &Keep, json: bool) -> Result<Exit, Failure> {
    if command.retention.0.is_zero() {
        let error = "nothing would be remembered, and a message that comes twice would take effect twice: name a time, such as 30d";
        return Err(Failure::new(Exit::Usage, anyhow::anyhow!(error)));
    }
    let mut connection = open(&command.target).await?;
    inbox::keep(&mut connection, command.retention.0).await?;
    let size = inbox::size(&mut connection).await?;
    output::say(&remembered(&size));
    if size.log_retention.is_none() {
        // The relay may run on another database, and nobody here knows for how long it may send an event again.
        output::say(
            "no relay has noted its log.retention in this database, so nothing was compared: remember ids for at least that long",
        );
    }
    if json {
        output::json(
            &json!({ "retention_seconds": size.retention, "log_retention_seconds": size.log_retention }),
        )?;
    }
    // It has no effect as it is.
    Ok(if size.log_retention > Some(size.retention) { Exit::Found } else { Exit::Fine })
}
