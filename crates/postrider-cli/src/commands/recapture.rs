//! `postrider recapture`: records the events that could not be recorded when they happened.

use anyhow::Context as _;
use clap::Args;
use postrider::capture::{self, Missing};
use postrider::schema;
use serde_json::{Value, json};

use super::plan;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Record the events that could not be recorded when they happened
///
/// With `on_failure: record` a write survives although its event could not be recorded, and everything that recording it takes is
/// kept. This makes the events of it, as the tables are declared now, in the order of the writes, in one transaction for each table. They come after
/// what was recorded meanwhile. Exits with 2 if something is left.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider recapture                    of every declared table
  postrider recapture public.issues      of one")]
pub(crate) struct Recapture {
    #[command(flatten)]
    target: Target,

    /// Only of these tables, as they are written in the file
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
}

impl Recapture {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let declared = plan::written(&self.target)?;
        if let Some(unknown) =
            self.tables.iter().find(|name| !declared.tables.iter().any(|table| table.name == **name))
        {
            return Err(Failure::configuration(format!("the table {unknown} is not declared in the file")));
        }
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let mut recaptured: Vec<Value> = Vec::new();
        for table in
            declared.tables.iter().filter(|table| self.tables.is_empty() || self.tables.contains(&table.name))
        {
            let writes = match capture::recapture(&mut connection, table).await {
                Ok(writes) => writes,
                Err(capture::Error::Database(error)) => {
                    let failed = Err::<(), _>(error).with_context(|| {
                        format!(
                            "the events of {} still cannot be recorded; nothing of it is lost",
                            table.name
                        )
                    });
                    return failed.map(|()| Exit::Fine).map_err(|error| Failure::new(Exit::Failed, error));
                }
                Err(error) => return Err(declared.failure(error)),
            };
            if writes > 0 {
                output::say(&format!("{}: the events of {} are recorded", table.name, writes_of(writes)));
            }
            recaptured.push(json!({ "table": table.name, "writes": writes }));
        }
        let left = capture::missing(&mut connection).await?;
        for Missing { relation, failures, sqlstate, .. } in &left {
            let writes = writes_of(failures.unsigned_abs());
            output::say(&format!("{relation}: the events of {writes} are still missing (error {sqlstate})"));
        }
        if left.is_empty() {
            output::say("no event is missing");
        }
        if json {
            let left: Vec<Value> = left
                .iter()
                .map(|left| json!({ "relation": left.relation, "writes": left.failures, "sqlstate": left.sqlstate }))
                .collect();
            output::json(&json!({ "recaptured": recaptured, "left": left }))?;
        }
        Ok(if left.is_empty() { Exit::Fine } else { Exit::Found })
    }
}

fn writes_of(count: u64) -> String {
    if count == 1 { "1 write".to_owned() } else { format!("{} writes", output::thousands(i128::from(count))) }
}
