//! Why a value could not be read: at which key, in words that repeat nothing secret.

use std::fmt;

use serde::de::{self, DeserializeOwned};

use super::super::finding::Finding;
use super::super::hint;
use super::super::shape::Shape;
use super::super::tree::{Entry, Node, Place, Value};

/// Why a value could not be read.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(super) kind: Kind,
    pub(super) message: String,
    pub(super) help: Option<String>,
    pub(super) place: Option<Place>,
    /// Innermost first.
    pub(super) path: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Value,
    UnknownKey,
    Missing,
}

impl Trouble {
    pub(super) fn new(kind: Kind, message: String) -> Self {
        Self { kind, message, help: None, place: None, path: Vec::new() }
    }

    pub(super) fn under(mut self, entry: &Entry) -> Self {
        if self.place.is_none() {
            let is_scalar = matches!(entry.value.value, Value::Scalar { .. }) && !entry.value.is_null();
            let place = if is_scalar && self.kind == Kind::Value { &entry.value.place } else { &entry.place };
            self.place = Some(place.clone());
        }
        self.path.push(entry.key.clone());
        self
    }

    /// What concerns the whole of it is wrong where it begins.
    pub(super) fn or_at(mut self, place: &Place) -> Self {
        self.place.get_or_insert_with(|| place.clone());
        self
    }

    /// A message about a text that came from elsewhere must not repeat it: the same complaint is made about three stars.
    pub(super) fn conceal<T: DeserializeOwned>(self, tree: &Node, way: &[String]) -> Self {
        let Some(Written { from }) = tree.find(way).and_then(|entry| written(&entry.value)) else {
            return self;
        };
        let mut tree = tree.clone();
        let starred = Node::text("***", self.place.clone().unwrap_or(Place::Flag("")));
        tree.set(&way.iter().map(String::as_str).collect::<Vec<_>>(), starred);
        let (message, help) = match T::deserialize(&tree) {
            Err(again) if again.path == self.path => (again.message, None),
            _ => ("this value does not fit here".to_owned(), None),
        };
        Self { message: format!("{message} (the value comes from {from})"), help, ..self }
    }

    pub(super) fn finding(self, path: &[&str], shape: &Shape) -> Finding {
        let Self { kind, message, mut help, place, .. } = self;
        if kind == Kind::UnknownKey
            && let Some(key) = path.last()
            && let Some(section) = shape.section_of(key)
        {
            help = Some(format!("`{key}` is a key of `{section}`"));
        }
        let section = path.split_last().map(|(_, section)| section.join(".")).unwrap_or_default();
        let message = match kind {
            Kind::Value if !path.is_empty() => format!("`{}`: {message}", path.join(".")),
            Kind::Missing if !path.is_empty() => format!("{message} in `{}`", path.join(".")),
            Kind::UnknownKey if !section.is_empty() => format!("{message} in `{section}`"),
            _ => message,
        };
        Finding { place, message, help }
    }
}

struct Written {
    from: String,
}

fn written(node: &Node) -> Option<Written> {
    Some(Written { from: node.written.as_ref()?.from.join(", ") })
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Trouble {}

impl de::Error for Trouble {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self::new(Kind::Value, message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let trouble = Self::new(Kind::UnknownKey, format!("unknown key `{field}`"));
        Self { help: hint::among(field, expected), ..trouble }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let trouble = Self::new(Kind::Value, format!("`{variant}` is not one of {}", expected.join(", ")));
        let help = hint::nearest(variant, expected.iter().copied());
        Self { help: help.map(|word| format!("did you mean `{word}`?")), ..trouble }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Kind::Missing, format!("the key `{field}` is missing"))
    }
}
