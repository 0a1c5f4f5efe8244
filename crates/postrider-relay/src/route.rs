//! Routing templates: where an event goes, rendered from what it says.
//!
//! `{type}`, `{entity}`, `{key}`, `{tenant}`; `{type.0}` is the part of the type before its first dot; `{headers.NAME}` and
//! `{payload.a.b}` take a string, a number or a boolean. `{{` and `}}` are braces.
//!
//! Type, entity, key and tenant are set by whoever may emit. Headers and payload may carry what an end user typed, so a template
//! that uses them either begins with a literal, which keeps them inside one namespace, or names what it allows:
//! `{payload.region:eu|us}`.

use std::borrow::Cow;

use postrider::log::Record;

use crate::json;
use crate::prepare::PrepareError;

/// No broker takes longer names for all its kinds of destination.
const LONGEST: usize = 255;

/// A template that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Field(Field),
    /// Of the dotted type, counted from zero.
    DottedType(usize),
    Inside(Document, Vec<String>, Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Type,
    Entity,
    Key,
    Tenant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Document {
    Headers,
    Payload,
}

impl Document {
    fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Payload => "payload",
        }
    }
}

const NAMES: [&str; 6] = ["type", "entity", "key", "tenant", "headers", "payload"];

impl Template {
    /// Understands a template.
    pub(crate) fn parse(text: &str) -> Result<Self, PrepareError> {
        let wrong = |message: String| PrepareError { key: "route", message };
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let column = text.len() - rest.len() + at + 1;
            let tail = &rest[at + 1..];
            let brace = &rest[at..=at];
            if let Some(after) = tail.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(wrong(format!(
                    "column {column}: a closing brace without an opening one; write }}}} for a literal brace"
                )));
            }
            let Some((name, after)) = tail.split_once('}') else {
                return Err(wrong(format!(
                    "column {column}: the brace is never closed; write {{{{ for a literal brace"
                )));
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(Part::parse(name).map_err(|why| wrong(format!("column {column}: {why}")))?);
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let template = Self { parts };
        template.check_trust().map_err(wrong)?;
        Ok(template)
    }

    fn check_trust(&self) -> Result<(), String> {
        if matches!(self.parts.first(), Some(Part::Literal(_))) {
            return Ok(());
        }
        let open = self.parts.iter().find_map(|part| match part {
            Part::Inside(document, path, allowed) if allowed.is_empty() => {
                Some(format!("{}.{}", document.name(), path.join(".")))
            }
            _ => None,
        });
        match open {
            None => Ok(()),
            Some(name) => Err(format!(
                "{{{name}}} may carry what an end user typed: begin the template with a literal, such as app.{{{name}}}, \
                 or name what is allowed, {{{name}:a|b}}"
            )),
        }
    }

    /// What it renders where everything that an event says is an `x`.
    pub(crate) fn sample(&self) -> Result<String, String> {
        let parts = self.parts.iter().map(|part| match part {
            Part::Literal(text) => text.as_str(),
            Part::Field(_) | Part::DottedType(_) | Part::Inside(..) => "x",
        });
        let name: String = parts.collect();
        check_name(&name).map(|()| name)
    }

    /// The destination of an event, or why it has none.
    pub(crate) fn render(&self, record: &Record, payload: &str) -> Result<String, String> {
        let mut name = String::with_capacity(48);
        for part in &self.parts {
            match part {
                Part::Literal(text) => name.push_str(text),
                Part::Field(field) => name.push_str(field.of(record)?),
                Part::DottedType(at) => name.push_str(
                    record
                        .r#type
                        .split('.')
                        .nth(*at)
                        .ok_or_else(|| format!("the type {:?} has no part {at}", record.r#type))?,
                ),
                Part::Inside(document, path, allowed) => {
                    name.push_str(&inside(*document, path, allowed, record, payload)?);
                }
            }
        }
        check_name(&name)?;
        Ok(name)
    }
}

impl Part {
    fn parse(name: &str) -> Result<Self, String> {
        let (head, path) = name.split_once('.').map_or((name, None), |(head, path)| (head, Some(path)));
        let field = match (head, path) {
            ("type", None) => Field::Type,
            ("entity", None) => Field::Entity,
            ("key", None) => Field::Key,
            ("tenant", None) => Field::Tenant,
            ("type", Some(part)) => {
                return part.parse().map(Self::DottedType).map_err(|_| {
                    format!("{{type.{part}}}: the parts of a type are counted, {{type.0}} is the first")
                });
            }
            ("headers", Some(path)) => return Self::inside(Document::Headers, path),
            ("payload", Some(path)) => return Self::inside(Document::Payload, path),
            ("headers", None) => {
                return Err("{headers} is an object; name a header, {headers.NAME}".to_owned());
            }
            ("payload", None) => return Err("{payload} is a document; name a part, {payload.a.b}".to_owned()),
            ("entity" | "key" | "tenant", Some(_)) => {
                return Err(format!("{{{name}}}: {head} has no parts; write {{{head}}}"));
            }
            _ => return Err(unknown(head)),
        };
        Ok(Self::Field(field))
    }

    fn inside(document: Document, path: &str) -> Result<Self, String> {
        let (path, allowed) = path.split_once(':').map_or((path, None), |(path, list)| (path, Some(list)));
        let allowed: Vec<_> =
            allowed.into_iter().flat_map(|list| list.split('|')).map(str::to_owned).collect();
        let path: Vec<_> = path.split('.').map(str::to_owned).collect();
        if path.iter().chain(&allowed).any(String::is_empty) {
            return Err(format!("{{{}.…}} has an empty name in it", document.name()));
        }
        // A header's name may have dots; there is nothing to descend into.
        let path = if document == Document::Headers { vec![path.join(".")] } else { path };
        Ok(Self::Inside(document, path, allowed))
    }
}

fn unknown(name: &str) -> String {
    let near = NAMES.iter().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 2 && distance < name.chars().count() => {
            format!("{{{name}}} is nothing an event has; did you mean {{{known}}}?")
        }
        _ => format!("{{{name}}} is nothing an event has; there are {}", NAMES.join(", ")),
    }
}

impl Field {
    fn of(self, record: &Record) -> Result<&str, String> {
        let (name, value) = match self {
            Self::Type => return Ok(&record.r#type),
            Self::Entity => ("entity", &record.entity),
            Self::Key => ("key", &record.key),
            Self::Tenant => ("tenant", &record.tenant),
        };
        value.as_deref().ok_or_else(|| format!("the event has no {name}, which the template asks for"))
    }
}

fn inside<'a>(
    document: Document,
    path: &[String],
    allowed: &[String],
    record: &'a Record,
    payload: &'a str,
) -> Result<Cow<'a, str>, String> {
    let name = || format!("{}.{}", document.name(), path.join("."));
    let text = match document {
        Document::Headers => record.headers.as_deref().unwrap_or_default(),
        Document::Payload => payload,
    };
    let value = json::lookup(text, path)
        .filter(|value| *value != "null")
        .ok_or_else(|| format!("the event has no {}, which the template asks for", name()))?;
    let value = match value.as_bytes().first() {
        Some(b'{' | b'[') => return Err(format!("{} is no string, number or boolean", name())),
        Some(b'"') => json::inside_quotes(value)
            .and_then(json::unescape)
            .ok_or_else(|| format!("{} has an escape that stands for no character", name()))?,
        _ => Cow::Borrowed(value),
    };
    if !allowed.is_empty() && !allowed.iter().any(|one| *one == *value) {
        return Err(format!("{} is {:?}, which the template does not allow", name(), shortened(&value)));
    }
    Ok(value)
}

/// What is a name everywhere; a sink may ask for more.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the template rendered an empty name".to_owned());
    }
    if name.len() > LONGEST {
        return Err(format!(
            "the template rendered a name of {} bytes, {:?}; the longest is {LONGEST}",
            name.len(),
            shortened(name)
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("the template rendered {name:?}, which has a control character in it"));
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 64 {
        return text.to_owned();
    }
    text.chars().take(63).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_doubled() {
        let template = Template::parse("a{{b}}c").unwrap();
        assert_eq!(template.parts, [Part::Literal("a{b}c".to_owned())]);
    }
}
