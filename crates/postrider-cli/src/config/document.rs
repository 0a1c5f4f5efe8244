//! `docs/configuration.md` and `docs/postrider.reference.yaml`, made from the schema. Run the tests with `POSTRIDER_BLESS=1` to write them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::layers::{Overrides, variable};
use super::shape::{NAME, Shape, shape};
use super::show::scalar;
use super::sinks;

const WIDTH: usize = 110;

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the schema by a test of the CLI; POSTRIDER_BLESS=1 writes it anew. Do not edit. -->

Everything works without a file: `postrider run --to stdout` needs no more than a database. For more, `postrider.yaml` is read: the one
that `--config PATH` or `POSTRIDER_CONFIG` names, else the one in the current folder. [postrider.reference.yaml](postrider.reference.yaml)
has every key with its default.

```yaml
database: ${DATABASE_URL}
relay: { memory_limit: 500MB, drain: 10s }
sinks:
  audit:
    file: { path: /var/lib/postrider/events.ndjson }
    start: earliest
    filter: '.type | startswith(\"order.\")'
```

- `postrider config check` finds what is wrong, with lines: first every key and value that cannot be read, and when they all can, bounds,
  expressions and routes. It looks as far as `--depth` says: at the file alone (`syntax`), at the variables, files and expressions it names
  (`references`, the default), at the database and the sinks (`environment`).
- `postrider config show` prints every value that is in effect and where it is from, without secrets: what a variable or a file holds stands as `${NAME}`.
- `postrider config schema` prints a JSON Schema, for editors.

## Which value wins

A flag, then a variable whose name begins with `POSTRIDER_`, then the file, then the default. A variable that is set to nothing counts as not
set. `DATABASE_URL` and the variables of libpq (`PGHOST`, `PGDATABASE`, …) come after the file, because they are there for other
programs too. So it is for every command: those that only need the database take it from the file, whatever else is wrong with that.
Service files of libpq are not read: `PGSERVICE` is refused where the URL leaves the host or the database to it.

## What a value can be

| | |
|---|---|
| duration | a whole number with `us`, `ms`, `s`, `m`, `h`, `d` or `w`: `5ms`, `2s`, `7d` |
| size | a whole number with `B`, `kB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB` or `TiB`: `500MB` |
| `${NAME}` | the environment variable; an error if it is not set |
| `${NAME:-text}` | the variable, or this text if it is not set or empty |
| `${NAME:?reason}` | the variable; if it is not set or empty, an error with this reason |
| `${file:path}` | the content of a file without its last line break; relative to the configuration file |
| `$$` | a dollar sign; a lone `$`, as in jq's variables, stays as it is |

References are filled in after the file was parsed, in values only: whatever a variable holds is one text and cannot add keys. Numbers,
durations and words can be references too. Keys that are unknown or given twice are refused. `null`, `~` or nothing at all means \"not
set\" where a key has no default.
";

/// The reference for people.
pub(crate) fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (key, shape) in shape().children() {
        section(&mut text, &[key], shape);
    }
    text
}

fn section<'s>(text: &mut String, path: &[&'s str], shape: &'s Shape) {
    let title = path.join(".");
    let _ = write!(text, "\n## `{title}`\n\n");
    if !shape.description.is_empty() {
        let _ = write!(text, "{}", wrapped(&shape.description, "", WIDTH + 30));
    }
    if path == ["sinks", NAME] {
        let _ = writeln!(
            text,
            "\nA name has 1 to 63 of the characters a-z, 0-9, `_` and `-`. Under it stands exactly one kind ({}) and any of the other keys.",
            kinds().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
        );
    }
    let mut leaves = Vec::new();
    let mut sections = Vec::new();
    if shape.is_section() {
        split(shape, &mut Vec::new(), path, &mut leaves, &mut sections);
    } else {
        leaves.push((Vec::new(), shape));
    }
    if !leaves.is_empty() {
        text.push_str("\n| key | takes | default | also as |\n|---|---|---|---|\n");
    }
    for (below, leaf) in leaves {
        let full: Vec<&str> = path.iter().copied().chain(below.iter().copied()).collect();
        let key = if below.is_empty() { title.clone() } else { below.join(".") };
        let default = match &leaf.default {
            None => "needed".to_owned(),
            Some(Value::Null) => "–".to_owned(),
            Some(value) => format!("`{}`", in_yaml(value)),
        };
        let mut also: Vec<String> = Vec::new();
        also.extend(Overrides::flag(&full).map(|flag| format!("`{flag}`")));
        also.extend(variable(&full).map(|name| format!("`{name}`")));
        let mut about = if below.is_empty() { String::new() } else { format!("<br>{}", leaf.description) };
        for (word, meaning) in leaf.choices.iter().filter(|(_, meaning)| !meaning.is_empty()) {
            let _ = write!(about, "<br>`{word}`: {meaning}");
        }
        let _ = writeln!(
            text,
            "| `{key}`{about} | {} | {default} | {} |",
            leaf.takes.replace('|', "\\|"),
            also.join(", ")
        );
    }
    for (path, shape) in sections {
        section(text, &path, shape);
    }
}

/// Keys of a section and of small sections inside it; a kind of sink and a section of names get a heading of their own.
fn split<'s>(
    shape: &'s Shape,
    below: &mut Vec<&'s str>,
    path: &[&'s str],
    leaves: &mut Vec<(Vec<&'s str>, &'s Shape)>,
    sections: &mut Vec<(Vec<&'s str>, &'s Shape)>,
) {
    for (key, child) in shape.children() {
        below.push(key);
        let full: Vec<&str> = path.iter().copied().chain(below.iter().copied()).collect();
        if key == NAME || (path == ["sinks", NAME] && kinds().any(|kind| kind == key)) {
            sections.push((full, child));
        } else if child.is_section() && !(child.is_of_names() && child.children()[0].1.children().is_empty())
        {
            split(child, below, path, leaves, sections);
        } else {
            leaves.push((below.clone(), child));
        }
        below.pop();
    }
}

fn kinds() -> impl Iterator<Item = &'static str> {
    shape()
        .find(&["sinks", NAME])
        .into_iter()
        .flat_map(Shape::children)
        .map(|(key, _)| key)
        .filter(|key| sinks::KINDS.contains(key))
}

const FILE_HEAD: &str = "\
# Every key of postrider.yaml, with its default.
#
# Made from the schema by a test of the CLI; POSTRIDER_BLESS=1 writes it anew. Do not edit.
# docs/configuration.md says the same as a table, with the variable and the flag for each key.
";

/// Sections of names, with one that stands in the reference file.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[("tables", "public.orders"), ("outbox", "public.old_outbox")];

/// The file in which every key stands with its default.
pub(crate) fn reference() -> String {
    let mut text = FILE_HEAD.to_owned();
    for (key, shape) in shape().children() {
        text.push('\n');
        if key == "sinks" {
            comment(&mut text, &shape.description, 0);
            text.push_str("sinks:\n");
            for (number, kind) in kinds().enumerate() {
                sink(&mut text, kind, number == 0);
            }
        } else if let Some((_, name)) = EXAMPLES.iter().find(|(section, _)| *section == key) {
            comment(&mut text, &shape.description, 0);
            let _ = writeln!(text, "{key}:\n  {name}:");
            for (key, shape) in shape.children().into_iter().flat_map(|(_, shape)| shape.children()) {
                entry(&mut text, key, shape, 2);
            }
        } else {
            entry(&mut text, key, shape, 0);
        }
    }
    text
}

/// The first sink has all the keys that every sink may have.
fn sink(text: &mut String, kind: &str, is_first: bool) {
    let Some(all) = shape().find(&["sinks", NAME]) else { return };
    if !is_first {
        text.push('\n');
    }
    let _ = writeln!(text, "  a-{kind}:");
    for (key, shape) in all.children() {
        let is_kind = sinks::KINDS.contains(&key);
        if key == kind || (is_first && !is_kind) {
            entry(text, key, shape, 2);
        }
    }
}

fn entry(text: &mut String, key: &str, shape: &Shape, depth: usize) {
    comment(text, &shape.description, depth);
    for (word, meaning) in shape.choices.iter().filter(|(_, meaning)| !meaning.is_empty()) {
        comment(text, &format!("- {word}: {meaning}"), depth);
    }
    let indent = "  ".repeat(depth);
    let key = super::show::key(key);
    if !shape.is_section() || shape.is_of_names() {
        let value = shape.default.clone().or_else(|| shape.example.clone());
        let value = value.unwrap_or_else(|| Value::from("events.ndjson"));
        let _ = writeln!(text, "{indent}{key}: {}", in_yaml(&value));
    } else if shape.children().is_empty() {
        let _ = writeln!(text, "{indent}{key}: {{}}");
    } else {
        let _ = writeln!(text, "{indent}{key}:");
        for (key, shape) in shape.children() {
            entry(text, key, shape, depth + 1);
        }
    }
}

fn comment(text: &mut String, words: &str, depth: usize) {
    let start = format!("{}# ", "  ".repeat(depth));
    text.push_str(&wrapped(words, &start, WIDTH));
}

/// Lines of at most so many characters.
fn wrapped(words: &str, start: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = start.to_owned();
    for word in words.split_whitespace() {
        if line.len() > start.len() && line.chars().count() + word.chars().count() >= width {
            text.push_str(line.trim_end());
            text.push('\n');
            start.clone_into(&mut line);
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
    text
}

fn in_yaml(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text, false),
        value => value.to_string(),
    }
}

/// The last section of a sink's own page: its keys.
const OPTIONS: &str = "\n## Options\n\n<!-- Made from the schema by a test of the CLI; POSTRIDER_BLESS=1 writes it anew. Do not edit below. -->\n";

/// A sink's own page as it should be; nothing for a kind that has none.
pub(crate) fn page(kind: &str) -> Option<(String, String)> {
    let name = format!("sinks/{kind}.md");
    let found = std::fs::read_to_string(path(&name)).ok()?;
    let by_hand = found.split_once(OPTIONS).map_or(found.as_str(), |(by_hand, _)| by_hand);
    let at = ["sinks", NAME, kind];
    let mut of_all = String::new();
    section(&mut of_all, &at, shape().find(&at)?);
    let (_, table) = of_all.split_once("\n| key |")?;
    Some((name, format!("{by_hand}{OPTIONS}\n| key |{table}")))
}

/// A file of the folder `docs`.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Fails if the file is not what the schema makes of it; with `POSTRIDER_BLESS` it is written.
#[track_caller]
pub(crate) fn assert_current(name: &str, text: &str) {
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        std::fs::write(path(name), text).unwrap();
    }
    let found = std::fs::read_to_string(path(name)).unwrap_or_default();
    let line = found.lines().zip(text.lines()).position(|(found, wanted)| found != wanted);
    assert!(
        found == text,
        "docs/{name} is not what the schema says, first at line {line:?}; run with POSTRIDER_BLESS=1"
    );
}
