use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// What is logged in `format` while `work` runs.
fn logged(format: Format, work: impl FnOnce()) -> String {
    let lines = Lines::default();
    let (to, change) = dispatch(EnvFilter::new("warn"), false, lines.clone());
    tracing::dispatcher::with_default(&to, || {
        tracing::info!("not yet");
        change(format, EnvFilter::new("trace"));
        work();
    });
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

fn sing() {
    let url = "amqp://me:c4n4ry@broker/events";
    tracing::info!(url, attempt = 3, "connecting to {url}, with \"quotes\"\nand a second line");
    tracing::warn!(error = ?io::Error::other(format!("cannot open {url}")), "gave up");
    let source = anyhow::anyhow!("host=h password=c4n4ry").context("the sink cannot be reached");
    tracing::error!(error = &*source as &(dyn std::error::Error + 'static), after = 1.5, fatal = false);
    tracing::debug!(options = ?("postgres://u:c4n4ry@h/d", Some("password=c4n4ry")), "x");
}

#[test]
fn fault_111_a_secret_in_a_log_line_is_taken_out() {
    for format in [Format::Text, Format::Json] {
        let log = logged(format, sing);
        assert!(!log.contains("c4n4ry") && !log.contains("not yet"), "{log}");
        assert!(log.contains("***") && log.contains("gave up") && log.contains("broker/events"), "{log}");
    }
}

#[test]
fn json_is_one_object_per_line_whatever_is_redacted() {
    let log = logged(Format::Json, sing);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["level"], "INFO");
    assert_eq!(lines[0]["attempt"], 3);
    assert_eq!(lines[0]["url"], "amqp://me:***@broker/events");
    assert_eq!(
        lines[0]["message"],
        "connecting to amqp://me:***@broker/events, with \"quotes\"\nand a second line"
    );
    assert_eq!(lines[2]["error"], "the sink cannot be reached: host=h password=***");
    assert_eq!((&lines[2]["after"], &lines[2]["fatal"]), (&Value::from(1.5), &Value::from(false)));
    let time = lines[0]["time"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
}
