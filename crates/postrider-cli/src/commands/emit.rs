//! `postrider emit`: writes events from the command line, a file or a pipe.

mod lines;
mod many;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use postrider::schema;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Write an event, or a file of them, to the log
///
/// One event is given as its type and its payload, which must be JSON. Many are read from a file or a pipe: one JSON object on each line,
/// with the fields type and payload, and if wanted key, tenant, entity and headers. They are written in transactions of --batch lines. A bad
/// line stops it: nothing of its transaction is written, and the message says how to go on behind the lines that are.
#[derive(Args)]
#[command(override_usage = "\
postrider emit [OPTIONS] <TYPE> <PAYLOAD>
       postrider emit [OPTIONS] --file <PATH>")]
#[command(after_long_help = "\
Examples:
  postrider emit order.paid '{\"order\": 7}' --key 7
  postrider emit user.greeted '\"hello\"' --tenant acme --header traceparent=00-…
  postrider emit --file events.ndjson
  producer | postrider emit --file -")]
pub(crate) struct Emit {
    #[command(flatten)]
    target: Target,

    /// What happened, such as order.paid
    #[arg(value_name = "TYPE", required_unless_present = "file", requires = "payload")]
    event_type: Option<String>,

    /// The event's content, as JSON
    #[arg(required_unless_present = "file")]
    payload: Option<String>,

    /// Events of one key stay in order
    #[arg(long)]
    key: Option<String>,

    /// The customer's scope
    #[arg(long)]
    tenant: Option<String>,

    /// The kind of thing it happened to
    #[arg(long)]
    entity: Option<String>,

    /// A header, as NAME=VALUE; may be given several times, with different names
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// Read events from this file, one JSON object on each line; - is standard input
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Many events",
        conflicts_with_all = ["event_type", "payload", "key", "tenant", "entity", "headers"]
    )]
    file: Option<PathBuf>,

    /// How many lines in one transaction
    #[arg(
        long,
        value_name = "N",
        help_heading = "Many events",
        default_value_t = 1000,
        // `requires = "file"` would not be heeded beside them: they exclude it.
        conflicts_with_all = ["event_type", "payload"],
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    batch: u32,

    /// Leave out the first N lines: they were committed by an earlier run. It must have so many
    #[arg(long, value_name = "N", help_heading = "Many events", default_value_t = 0, conflicts_with_all = ["event_type", "payload"])]
    skip: u64,
}

impl Emit {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        self.check_headers()?;
        if let Some(path) = &self.file {
            // Opened first: a mistyped name is found without a database.
            let source = lines::Source::open(path)?;
            let mut connection = self.target.connect().await?;
            schema::check_version(&mut connection).await?;
            let batch = usize::try_from(self.batch).unwrap_or(usize::MAX);
            return many::emit(&mut connection, source, batch, self.skip, json).await;
        }
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let id = self.emit(&mut connection).await?;
        if json {
            output::json(&json!({ "id": id.to_string() }))?;
        } else {
            output::data(&format!("{id}\n"))?;
        }
        Ok(Exit::Fine)
    }

    /// Of two values for one name only the last would be kept.
    fn check_headers(&self) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        match self.headers.iter().find(|(name, _)| !names.insert(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Failure::new(
                Exit::Usage,
                anyhow::anyhow!("the header {name:?} is given more than once; give it one value"),
            )),
        }
    }

    async fn emit(&self, connection: &mut PgConnection) -> postrider::log::error::Result<Uuid> {
        let headers = (!self.headers.is_empty()).then(|| {
            let fields = self.headers.iter().map(|(name, value)| (name.clone(), value.clone().into()));
            serde_json::Value::Object(fields.collect()).to_string()
        });
        Ok(sqlx::query_scalar(
            "select postrider.emit($1::text, $2::text, key => $3, tenant => $4, entity => $5, headers => $6::text)",
        )
        .bind(self.event_type.as_deref())
        .bind(self.payload.as_deref())
        .bind(self.key.as_deref())
        .bind(self.tenant.as_deref())
        .bind(self.entity.as_deref())
        .bind(headers)
        .fetch_one(connection)
        .await?)
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("give a name and a value, such as traceparent=00-…".to_owned()),
    }
}
