//! The file as a tree in which every key and value knows where it was written.
//!
//! A scalar stays the text that it is; what it means is decided by the type of the key it is given to. So `null` may be the name of a
//! kind of sink, `no` is a word, and an interpolated text is read like one that was typed.

use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::finding::Finding;

/// More than any configuration needs; less than an alias of aliases of aliases makes.
const MOST_NODES: usize = 50_000;

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the file; line and column begin at 1, the bytes are those of the text itself.
    File { line: usize, column: usize, bytes: Range<usize> },
    /// In this environment variable.
    Variable(String),
    /// By this option of the command line.
    Flag(&'static str),
}

/// How an interpolated text may be shown, as it could be written, and what it was made from.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) text: String,
    /// `environment NAME` or `file PATH`.
    pub(crate) from: Vec<String>,
}

/// One value. Not `Debug`: it may hold a password.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
    /// Set once something was put into it: from then on its text is nobody's business.
    pub(crate) written: Option<Written>,
    /// An entry was wrong and has been taken out: that something is missing here is no news.
    pub(crate) is_incomplete: bool,
}

#[derive(Clone)]
pub(crate) enum Value {
    Scalar { text: String, is_plain: bool },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) value: Node,
}

impl Node {
    fn new(value: Value, place: Place) -> Self {
        Self { value, place, written: None, is_incomplete: false }
    }

    /// Something given as a text from outside the file.
    pub(crate) fn text(text: impl Into<String>, place: Place) -> Self {
        Self::new(Value::Scalar { text: text.into(), is_plain: false }, place)
    }

    pub(crate) fn map(entries: Vec<Entry>, place: Place) -> Self {
        Self::new(Value::Map(entries), place)
    }

    /// Nothing was written, or one of the words for nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, is_plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The entries of a section; a section in which nothing stands has none.
    pub(crate) fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            Value::Scalar { .. } if self.is_null() => Some(&[]),
            _ => None,
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries()?.iter().find(|entry| entry.key == key)
    }

    /// The entry at the end of a path.
    pub(crate) fn find<S: AsRef<str>>(&self, path: &[S]) -> Option<&Entry> {
        let (last, way) = path.split_last()?;
        way.iter().try_fold(self, |node, key| Some(&node.entry(key.as_ref())?.value))?.entry(last.as_ref())
    }

    /// Takes an entry out; from then on its section is incomplete. Answers whether it was there.
    pub(crate) fn cut<S: AsRef<str>>(&mut self, path: &[S]) -> bool {
        let Some((key, rest)) = path.split_first() else { return false };
        let key = key.as_ref();
        let position = match &self.value {
            Value::Map(entries) => entries.iter().position(|entry| entry.key == key),
            Value::List(items) => key.parse::<usize>().ok().filter(|at| *at < items.len()),
            Value::Scalar { .. } => None,
        };
        let Some(at) = position else { return false };
        match &mut self.value {
            Value::Map(entries) if !rest.is_empty() => return entries[at].value.cut(rest),
            Value::List(items) if !rest.is_empty() => return items[at].cut(rest),
            Value::Map(entries) => drop(entries.remove(at)),
            Value::List(items) => drop(items.remove(at)),
            Value::Scalar { .. } => {}
        }
        self.is_incomplete = true;
        true
    }

    /// Puts a value at a path, in place of what is there.
    pub(crate) fn set(&mut self, path: &[&str], value: Node) {
        let Some((key, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if self.is_null() {
            self.value = Value::Map(Vec::new());
        }
        // A scalar in the place of a section is refused when the tree is read; there is nothing to add to.
        let Value::Map(entries) = &mut self.value else { return };
        match entries.iter_mut().find(|entry| entry.key == *key) {
            Some(entry) if rest.is_empty() => {
                entry.place = value.place.clone();
                entry.value = value;
            }
            Some(entry) => entry.value.set(rest, value),
            None => {
                let place = value.place.clone();
                let mut section = Self::map(Vec::new(), place.clone());
                section.set(rest, value);
                entries.push(Entry { key: (*key).to_owned(), place, value: section });
            }
        }
    }

    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Scalar { .. } => 0,
            Value::List(items) => items.iter().map(Self::count).sum(),
            Value::Map(entries) => entries.iter().map(|entry| entry.value.count()).sum(),
        }
    }
}

/// Reads a file. What is wrong goes to `findings`; without a tree nothing else can be said about it.
pub(crate) fn parse(source: &str, findings: &mut Vec<Finding>) -> Option<Node> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut builder = Builder {
        events: Parser::new_from_str_with_options(source, options),
        anchors: HashMap::new(),
        nodes: 0,
        findings: Vec::new(),
    };
    let tree = builder.document();
    findings.append(&mut builder.findings);
    match tree {
        Ok(tree) => Some(tree),
        Err(finding) => {
            findings.push(finding);
            None
        }
    }
}

struct Builder<'s> {
    events: Parser<'s, StrInput<'s>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    findings: Vec<Finding>,
}

type Built<T> = Result<T, Finding>;

impl<'s> Builder<'s> {
    fn next(&mut self) -> Built<(Event<'s>, Span)> {
        match self.events.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(broken(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The one document of the file; an empty file is an empty section.
    fn document(&mut self) -> Built<Node> {
        let mut tree = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(..) if tree.is_some() => {
                    let message = "a second document begins here; the file must be one";
                    return Err(Finding::at(place(&span), message).help("remove the line `---`"));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => tree = Some(self.node(event, &span)?),
            }
        }
        let start = Place::File { line: 1, column: 1, bytes: 0..0 };
        Ok(tree.unwrap_or_else(|| Node::map(Vec::new(), start)))
    }

    fn node(&mut self, event: Event<'s>, span: &Span) -> Built<Node> {
        self.count(1, span)?;
        if event.tag().is_some() {
            return Err(Finding::at(place(span), "tags such as `!name` have no meaning here")
                .help("remove the tag; the key decides what its value is"));
        }
        let anchor = event.anchor_id();
        let node = match event {
            Event::Scalar(text, style, ..) => {
                let is_plain = style == ScalarStyle::Plain;
                Node::new(Value::Scalar { text: text.into_owned(), is_plain }, place(span))
            }
            Event::SequenceStart(..) => self.list(span)?,
            Event::MappingStart(..) => self.section(span)?,
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(Finding::at(place(span), "an alias may not stand inside its own anchor"));
                };
                self.count(node.count(), span)?;
                node
            }
            _ => return Err(Finding::at(place(span), "a value is expected here")),
        };
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, start: &Span) -> Built<Node> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Node::new(Value::List(items), place(start))),
                (event, span) => items.push(self.node(event, &span)?),
            }
        }
    }

    fn section(&mut self, start: &Span) -> Built<Node> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (key, at) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Node::map(entries, place(start))),
                (Event::Scalar(key, ..), span) => (key.into_owned(), place(&span)),
                (_, span) => return Err(Finding::at(place(&span), "a key must be a word")),
            };
            let (event, span) = self.next()?;
            let value = self.node(event, &span)?;
            match entries.iter().find(|entry| entry.key == key) {
                Some(Entry { place: Place::File { line, .. }, .. }) => {
                    let message = format!("the key `{key}` is given twice; the first is on line {line}");
                    self.findings.push(Finding::at(at, message));
                }
                _ => entries.push(Entry { key, place: at, value }),
            }
        }
    }

    fn count(&mut self, nodes: usize, span: &Span) -> Built<()> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(Finding::at(place(span), format!("the file has more than {MOST_NODES} values")));
        }
        Ok(())
    }
}

fn place(span: &Span) -> Place {
    Place::File {
        line: span.start.line(),
        column: span.start.col() + 1,
        bytes: span.byte_range().unwrap_or_default(),
    }
}

fn broken(error: &ScanError) -> Finding {
    let mark = error.marker();
    let start = mark.byte_offset().unwrap_or_default();
    let place = Place::File { line: mark.line(), column: mark.col() + 1, bytes: start..start + 1 };
    Finding::at(place, format!("this is no YAML: {}", error.info()))
}
