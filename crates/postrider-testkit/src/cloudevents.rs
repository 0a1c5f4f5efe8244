//! Whether what was read back from a broker is a `CloudEvent`, by a library that is none of ours: npm's `cloudevents`, in strict mode.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("cloudevents/validate.js");

/// A message as a client that knows nothing of Postrider has read it.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The headers, the content type among them as `content-type`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

/// The events that messages of a kind of sink (`nats`, `kafka`, `rabbitmq`, `redis`) are, in either mode; an error if one is none.
pub fn cloudevents(sink: &str, messages: &[Heard]) -> Result<Vec<Value>> {
    let home = crate::cache().join("cloudevents/node_modules");
    ensure!(
        home.exists(),
        "npm's cloudevents is not installed: {} is missing; run ./dev setup",
        home.display()
    );
    let mut node = Command::new("node")
        .args(["-e", SCRIPT])
        .env("NODE_PATH", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting node")?;
    let mut input = node.stdin.take().context("no standard input")?;
    let lines: String = messages
        .iter()
        .map(|Heard { headers, body }| {
            let headers: serde_json::Map<String, Value> =
                headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            json!({ "sink": sink, "headers": headers, "body": body }).to_string() + "\n"
        })
        .collect();
    // A thread of its own: both pipes may be full at once.
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let end = node.wait_with_output()?;
    let said = String::from_utf8_lossy(&end.stderr);
    ensure!(end.status.success(), "these are no CloudEvents: {said}");
    writer.join().ok().context("writing to node")??;
    let events: Vec<Value> =
        String::from_utf8(end.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(events.len() == messages.len(), "{} events of {} messages", events.len(), messages.len());
    Ok(events)
}
