//! What is wrong with a configuration: where, what, and what to do about it.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use serde_json::{Value, json};

use super::secrets;
use super::tree::Place;
use crate::failure::redact;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) place: Option<Place>,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Finding {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { place: None, message: message.into(), help: None }
    }

    pub(crate) fn at(place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), ..Self::new(message) }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    fn position(&self) -> Option<(usize, usize)> {
        match self.place {
            Some(Place::File { line, column, .. }) => Some((line, column)),
            _ => None,
        }
    }
}

/// The text that findings point into. Not `Debug`: it may hold a password.
#[derive(Clone, Default)]
pub(crate) struct Text {
    /// The file as the user named it; empty if there is none.
    pub(crate) name: String,
    pub(crate) source: String,
    /// What must not be shown of it. `None` while nothing is known about its structure.
    pub(crate) masks: Option<Vec<Range<usize>>>,
}

/// Everything that was found, with the text it is about.
pub(crate) struct Report {
    text: Text,
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn new(text: Text, mut findings: Vec<Finding>) -> Self {
        // Elsewhere than in the file: last.
        findings.sort_by_key(|finding| finding.position().unwrap_or((usize::MAX, 0)));
        findings.dedup();
        Self { text, findings }
    }

    /// The same with more.
    pub(crate) fn with(&self, findings: Vec<Finding>) -> Self {
        Self::new(self.text.clone(), self.findings.iter().cloned().chain(findings).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            let position = finding.position();
            json!({
                "line": position.map(|(line, _)| line),
                "column": position.map(|(_, column)| column),
                "from": match &finding.place {
                    Some(Place::Variable(name)) => Some(name.clone()),
                    Some(Place::Flag(flag)) => Some((*flag).to_owned()),
                    _ => None,
                },
                "message": redact(&finding.message),
                "help": finding.help.as_deref().map(redact),
            })
        });
        findings.collect()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
        match &finding.place {
            Some(Place::File { line, column, bytes }) => {
                write!(f, "{}:{line}:{column}: {}", self.text.name, finding.message)?;
                if let Some(excerpt) = self.text.excerpt(bytes) {
                    let margin = " ".repeat(line.to_string().len());
                    write!(f, "\n  {line} | {}\n  {margin} | {}", excerpt.line, excerpt.pointer())?;
                }
            }
            Some(Place::Variable(name)) => write!(f, "the variable {name}: {}", finding.message)?,
            Some(Place::Flag(flag)) => write!(f, "{flag}: {}", finding.message)?,
            None if self.text.name.is_empty() => f.write_str(&finding.message)?,
            None => write!(f, "{}: {}", self.text.name, finding.message)?,
        }
        match &finding.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.len() > 1 {
            writeln!(f, "{} things are wrong with the configuration", self.findings.len())?;
        }
        for (number, finding) in self.findings.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            self.write(f, finding)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Report {}

/// A line of the file, without its secrets, and where to look.
struct Excerpt {
    line: String,
    column: usize,
    width: usize,
}

impl Excerpt {
    fn pointer(&self) -> String {
        " ".repeat(self.column) + &"^".repeat(self.width)
    }
}

impl Text {
    fn excerpt(&self, bytes: &Range<usize>) -> Option<Excerpt> {
        let at = self.source.floor_char_boundary(bytes.start);
        let start = self.source.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1);
        let end = self.source[at..].find('\n').map_or(self.source.len(), |length| at + length);
        if self.source[start..end].trim().is_empty() {
            return None;
        }
        let before = self.masked(start..at);
        let after = self.masked(at..end);
        let meant = self.masked(at..self.source.ceil_char_boundary(bytes.end).clamp(at, end));
        let mut line = format!("{before}{after}");
        if self.masks.is_none() {
            line = secrets::hush(&line);
        }
        let column = before.chars().count();
        let width =
            meant.trim_end().chars().count().clamp(1, line.chars().count().saturating_sub(column).max(1));
        Some(Excerpt { line: line.trim_end().to_owned(), column, width })
    }

    /// A part of one line, printable, with stars where a secret is.
    fn masked(&self, range: Range<usize>) -> String {
        let masks = self.masks.as_deref().unwrap_or_default();
        let mut shown = String::new();
        for (offset, letter) in self.source[range.clone()].char_indices() {
            let at = range.start + offset;
            match masks.iter().find(|mask| mask.contains(&at)) {
                Some(mask) if at == mask.start.max(range.start) => shown.push_str("***"),
                Some(_) => {}
                None if letter.is_control() => shown.push(' '),
                None => shown.push(letter),
            }
        }
        redact(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(source: &str, word: &str) -> Place {
        let start = source.find(word).unwrap();
        let line = source[..start].matches('\n').count() + 1;
        let column = source[..start].rsplit('\n').next().unwrap().chars().count() + 1;
        Place::File { line, column, bytes: start..start + word.len() }
    }

    #[test]
    fn points_at_the_word() {
        let source = "log:\n  retentoin: 7d # bad\n";
        let text = Text { name: "p.yaml".to_owned(), source: source.to_owned(), masks: Some(Vec::new()) };
        let finding = Finding::at(place(source, "retentoin"), "unknown key").help("think");
        let shown = Report::new(text, vec![finding]).to_string();
        assert_eq!(
            shown,
            "p.yaml:2:3: unknown key\n  2 |   retentoin: 7d # bad\n    |   ^^^^^^^^^\n  help: think"
        );
    }

    #[test]
    fn stars_stand_where_a_secret_is_and_the_pointer_still_points() {
        let source = "{ token: canary, url: amqp://u:canary@h/, max: x }";
        let start = source.find("canary").unwrap();
        let masks = Some(std::iter::once(start..start + 6).collect());
        let text = Text { name: "p".to_owned(), source: source.to_owned(), masks };
        let shown = Report::new(text, vec![Finding::at(place(source, "x }"), "no")]).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "  1 | { token: ***, url: amqp://u:***@h/, max: x }");
        assert_eq!(lines[2].find('^'), lines[1].find("x }"));
    }
}
