//! The configuration as it works: every value, where it is from, no secret.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::layers::origin;
use super::raw::File;
use super::secrets;
use super::shape::{rank, shape};
use super::tree::Node;
use crate::failure::redact;

/// Where the comments begin, if the values leave room.
const COLUMN: usize = 44;

/// One line of it.
struct Line {
    path: Vec<String>,
    /// `None` for a section with keys below it.
    value: Option<Value>,
    /// As it has to be written; differs from the value where that holds references or secrets.
    is_written: bool,
    origin: String,
}

/// The effective configuration, ready to be printed.
pub(crate) struct Shown(Vec<Line>);

impl Shown {
    pub(crate) fn new(file: &File, tree: &Node) -> Self {
        let value = serde_json::to_value(file).unwrap_or_default();
        let mut lines = Vec::new();
        if let Value::Object(keys) = &value {
            collect(keys, &mut Vec::new(), tree, &mut lines);
        }
        Self(lines)
    }

    /// As YAML, with the origin of each value behind it.
    pub(crate) fn yaml(&self) -> String {
        let mut yaml = String::new();
        for line in &self.0 {
            let depth = line.path.len().saturating_sub(1);
            let key = line.path.last().map(String::as_str).unwrap_or_default();
            let mut text = format!("{}{}:", "  ".repeat(depth), self::key(key));
            if let Some(value) = &line.value {
                let _ = write!(text, " {}", in_yaml(value, line.is_written));
                let _ = write!(yaml, "{text:COLUMN$}  # {}", line.origin);
            } else {
                yaml.push_str(&text);
            }
            yaml.push('\n');
        }
        yaml
    }

    /// As JSON: the values, and the origins by path.
    pub(crate) fn json(&self) -> Value {
        let mut values = Value::Object(Map::new());
        let mut origins = Map::new();
        for line in &self.0 {
            let mut place = &mut values;
            for key in &line.path {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                // Indexing with a key that is not there makes it.
                place = &mut place[key];
            }
            *place = line.value.clone().unwrap_or_else(|| Value::Object(Map::new()));
            if line.value.is_some() {
                origins.insert(line.path.join("."), line.origin.clone().into());
            }
        }
        json!({ "configuration": values, "origins": origins })
    }
}

fn collect(keys: &Map<String, Value>, path: &mut Vec<String>, tree: &Node, lines: &mut Vec<Line>) {
    let mut sorted: Vec<(&String, &Value)> = keys.iter().collect();
    if path.len() != 1 || !["sinks", "tables", "outbox"].contains(&path[0].as_str()) {
        sorted.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)));
    }
    for (key, value) in sorted {
        path.push(key.clone());
        match value {
            Value::Object(keys) if !keys.is_empty() => {
                lines.push(Line {
                    path: path.clone(),
                    value: None,
                    is_written: false,
                    origin: String::new(),
                });
                collect(keys, path, tree, lines);
            }
            value => {
                let entry = tree.find(path);
                let (value, is_written) = shown(value, path, tree);
                lines.push(Line {
                    path: path.clone(),
                    value: Some(value),
                    is_written,
                    origin: origin(entry),
                });
            }
        }
        path.pop();
    }
}

/// A value as it may be shown, and whether it is shown as it was written.
fn shown(value: &Value, path: &[String], tree: &Node) -> (Value, bool) {
    let Value::String(text) = value else { return (value.clone(), false) };
    let shape = shape();
    let is_free = shape.find(path).is_none_or(|shape| shape.takes == "text");
    let written = tree.find(path).and_then(|entry| entry.value.written.as_ref());
    let (text, is_written) = match written {
        // What a variable holds stays there, unless it is a number or a word of a list.
        Some(written) if is_free => (&written.text, true),
        _ => (text, false),
    };
    if shape.is_secret(path) && !text.contains("://") && !(is_written && secrets::is_reference(text)) {
        return ("***".into(), false);
    }
    (redact(text).into(), is_written)
}

fn in_yaml(value: &Value, is_written: bool) -> String {
    match value {
        Value::String(text) => scalar(text, is_written),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| in_yaml(item, is_written)).collect();
            format!("[{}]", items.join(", "))
        }
        value => value.to_string(),
    }
}

/// A key in YAML. `null` is a word for us, and nothing for other readers of the file unless it is quoted.
pub(crate) fn key(key: &str) -> String {
    scalar(key, true)
}

/// A text in YAML: plain where that is safe, else quoted as in JSON, which YAML understands.
pub(crate) fn scalar(text: &str, is_written: bool) -> String {
    let escaped = if !is_written && (text.contains("${") || text.contains("$$")) {
        text.replace('$', "$$")
    } else {
        text.to_owned()
    };
    let is_safe = |letter: char| letter.is_ascii_alphanumeric() || "_-./:+".contains(letter);
    let is_plain = escaped.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
        && escaped.chars().all(is_safe)
        && !escaped.ends_with(':')
        && escaped.parse::<f64>().is_err()
        && !matches!(escaped.to_ascii_lowercase().as_str(), "true" | "false" | "yes" | "no" | "on" | "null");
    if is_plain { escaped } else { Value::String(escaped).to_string() }
}
