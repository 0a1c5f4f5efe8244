//! One event on one line.

use std::fmt::Write as _;

use postrider::log::Record;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::{moment, output};

/// Prints events until there are enough.
pub(super) struct Printer {
    json: bool,
    colour: bool,
    left: Option<u64>,
}

/// Without `seq`: it repeats after a failover and must not become anybody's identity.
#[derive(Serialize)]
struct Document<'r> {
    id: String,
    source_id: Option<&'r str>,
    r#type: &'r str,
    entity: Option<&'r str>,
    key: Option<&'r str>,
    tenant: Option<&'r str>,
    lane: i16,
    created_at: String,
    headers: Option<Box<RawValue>>,
    payload: Option<Box<RawValue>>,
}

impl Printer {
    pub(super) fn new(json: bool, limit: Option<u64>) -> Self {
        Self { json, colour: output::is_colourful(), left: limit }
    }

    /// Answers whether more is wanted.
    pub(super) fn print(&mut self, record: &Record) -> Result<bool, Failure> {
        let line = if self.json { document(record) } else { words(record, self.colour) };
        if !output::stream(&line)? {
            return Ok(false);
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Ok(self.left != Some(0))
    }
}

fn document(record: &Record) -> String {
    let document = Document {
        id: record.id.to_string(),
        source_id: record.source_id.as_deref(),
        r#type: &record.r#type,
        entity: record.entity.as_deref(),
        key: record.key.as_deref(),
        tenant: record.tenant.as_deref(),
        lane: record.lane,
        created_at: moment::text(record.created_at),
        headers: record.headers.as_deref().and_then(output::on_one_line),
        payload: output::on_one_line(&record.payload),
    };
    let mut line = serde_json::to_string(&document).unwrap_or_default();
    line.push('\n');
    line
}

fn words(record: &Record, colour: bool) -> String {
    let paint = |text: String, code: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text };
    let mut line = paint(moment::text(record.created_at), "2");
    let _ = write!(line, " {}", paint(output::plain(&record.r#type), "1;36"));
    let id = record.source_id.clone().unwrap_or_else(|| record.id.to_string());
    let fields = [
        ("id", Some(&id)),
        ("key", record.key.as_ref()),
        ("tenant", record.tenant.as_ref()),
        ("entity", record.entity.as_ref()),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = write!(line, " {}{}", paint(format!("{name}="), "2"), output::plain(value));
        }
    }
    let _ = write!(line, " {}", output::plain(&record.payload));
    if let Some(headers) = &record.headers {
        let _ = write!(line, " {}", paint(output::plain(headers), "2"));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn record() -> Record {
        Record {
            seq: 1,
            lane: 3,
            id: Uuid::nil(),
            source_id: None,
            r#type: "order.paid".to_owned(),
            entity: None,
            key: Some("7\u{1b}[2J".to_owned()),
            tenant: None,
            payload: "{\"a\" :\n 1.50}".to_owned(),
            headers: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let line = words(&record(), true);
        assert_eq!(line.lines().count(), 1);
        assert!(line.contains("\x1b[1;36morder.paid\x1b[0m") && line.contains("7\\u{1b}[2J"), "{line}");
        let line = document(&record());
        assert_eq!(line.lines().count(), 1);
        assert!(line.contains("\"payload\":{\"a\" :  1.50}"), "{line}");
    }
}
