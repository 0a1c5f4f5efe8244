//! `postrider init`: installs or upgrades the schema.

use clap::Args;
use postrider::schema::{self, Installed};
use serde_json::json;
use sqlx::Connection as _;

use super::schema::Choices;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Install the schema `postrider` in a database, or bring it up to date
///
/// Everything happens in one transaction, may be repeated, and may be started by any number of processes at once. No superuser and
/// no extension is needed: the owner of the database will do. The roles are created if they do not exist; where the owner may not
/// create roles, the statements for someone who may are printed, and nothing is changed.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider init --database postgres://owner@db.example/shop
  postrider init --lanes 1                      one total order, read by one relay at a time
  postrider init --emit-role app --relay-role app --consume-role app --reader-role app
                                                all rights for one role that is there already")]
pub(crate) struct Init {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    choices: Choices,
}

impl Init {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let install = self.choices.install();
        let mut connection = self.target.connect().await?;
        let installed = schema::install(&mut connection, &install).await?;
        // The work is committed: how the connection ends does not matter any more.
        let _ = connection.close().await;
        output::say(&in_words(&installed, install.max_payload));
        if json {
            let Installed { from, to, lanes, granted } = installed;
            output::json(&json!({ "from": from, "to": to, "lanes": lanes, "granted": granted }))?;
        }
        Ok(Exit::Fine)
    }
}

fn in_words(installed: &Installed, max_payload: Option<i64>) -> String {
    let Installed { from, to, lanes, granted } = installed;
    let lanes = if *lanes == 1 { "1 lane".to_owned() } else { format!("{lanes} lanes") };
    // With the schema they come by themselves; later it is what somebody asked for.
    let granted = match granted.as_slice() {
        _ if *from == 0 => String::new(),
        [] => String::new(),
        [role] => format!("; granted rights to {role}"),
        roles => format!("; granted rights to {}", roles.join(", ")),
    };
    let done = match (*from, max_payload) {
        (0, _) => format!("installed schema version {to} with {lanes}"),
        (from, _) if from < *to => format!("upgraded the schema from version {from} to {to}"),
        (_, Some(bytes)) => {
            format!("already at version {to}; payloads of up to {bytes} bytes are taken from now on")
        }
        (_, None) if granted.is_empty() => format!("already at version {to}: nothing to do"),
        (_, None) => format!("already at version {to}"),
    };
    done + &granted
}
