//! What can be chosen about the schema, by `init` and `sql` alike.

use clap::Args;
use postrider::schema::Install;

use crate::bytes;

const MOST_LANES: i32 = 1024;
/// `PostgreSQL` cuts longer names off.
const LONGEST_ROLE: usize = 63;

#[derive(Args)]
pub(crate) struct Choices {
    /// Into how many lanes keys are spread: a power of two up to 1024 [default: 16]
    ///
    /// Lanes are what relays share out among each other; one lane gives one total order. Fixed once the log exists.
    #[arg(long, value_name = "N", value_parser = lanes)]
    lanes: Option<i32>,

    /// The largest payload of an event, in bytes or as 64MB or 16MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    max_payload: Option<i64>,

    /// The role that may only emit
    #[arg(long, value_name = "ROLE", default_value_t = Install::default().emit_role, value_parser = role, help_heading = "Roles")]
    emit_role: String,

    /// The role that may read the log and keep a relay's state
    #[arg(long, value_name = "ROLE", default_value_t = Install::default().relay_role, value_parser = role, help_heading = "Roles")]
    relay_role: String,

    /// The role that may emit and use the receiving end
    #[arg(long, value_name = "ROLE", default_value_t = Install::default().consume_role, value_parser = role, help_heading = "Roles")]
    consume_role: String,

    /// The role that may look at the views
    #[arg(long, value_name = "ROLE", default_value_t = Install::default().reader_role, value_parser = role, help_heading = "Roles")]
    reader_role: String,
}

impl Choices {
    /// As the library wants it.
    pub(crate) fn install(&self) -> Install {
        Install {
            lanes: self.lanes,
            max_payload: self.max_payload,
            emit_role: self.emit_role.clone(),
            relay_role: self.relay_role.clone(),
            consume_role: self.consume_role.clone(),
            reader_role: self.reader_role.clone(),
        }
    }
}

fn lanes(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(lanes @ 1..=MOST_LANES) if lanes & (lanes - 1) == 0 => Ok(lanes),
        _ => Err(format!("choose a power of two from 1 to {MOST_LANES}")),
    }
}

fn role(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a role needs a name".to_owned());
    }
    if text.len() > LONGEST_ROLE {
        return Err(format!("PostgreSQL cuts names off after {LONGEST_ROLE} bytes, this has {}", text.len()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_a_power_of_two() {
        for good in ["1", "2", "16", "1024"] {
            assert!(lanes(good).is_ok(), "{good}");
        }
        for bad in ["0", "-4", "3", "2048", "", "x", "99999999999"] {
            assert!(lanes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_role_has_a_name_that_the_server_keeps() {
        assert!(role("Ünïcode role").is_ok());
        assert!(role("").is_err());
        assert!(role(&"r".repeat(64)).is_err());
    }
}
