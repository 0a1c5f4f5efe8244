//! `${VAR}`, `${VAR:-default}`, `${VAR:?reason}`, `${file:path}` and `$$`, in texts only.
//!
//! After parsing: whatever a variable holds is one text, never a key, a list or a second value.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::finding::Finding;
use super::tree::{Node, Place, Value, Written};

/// A key or a certificate is smaller.
const LARGEST_FILE: u64 = 1 << 20;

/// Where values come from.
pub(crate) struct Interpolation<'e> {
    pub(crate) environment: &'e Environment,
    /// What relative paths are relative to: the folder of the configuration file.
    pub(crate) folder: PathBuf,
    /// Whether what is missing is an error. If not, the key is taken out as if it were not there.
    pub(crate) is_strict: bool,
}

impl Interpolation<'_> {
    /// Fills in every text of the tree. What cannot be filled in is taken out of it.
    pub(crate) fn fill(&self, node: &mut Node, findings: &mut Vec<Finding>) {
        match &mut node.value {
            Value::Scalar { .. } => {}
            Value::List(items) => {
                let before = items.len();
                items.retain_mut(|item| self.keep(item, findings));
                node.is_incomplete |= items.len() < before;
            }
            Value::Map(entries) => {
                let before = entries.len();
                entries.retain_mut(|entry| self.keep(&mut entry.value, findings));
                node.is_incomplete |= entries.len() < before;
            }
        }
    }

    fn keep(&self, node: &mut Node, findings: &mut Vec<Finding>) -> bool {
        // What a flag or a variable of ours says is said already.
        if !matches!(node.place, Place::File { .. }) && matches!(node.value, Value::Scalar { .. }) {
            return true;
        }
        let Value::Scalar { text, is_plain } = &mut node.value else {
            self.fill(node, findings);
            return true;
        };
        match self.expand(text) {
            Ok(None) => true,
            Ok(Some(Expanded { text: expanded, shown, from })) => {
                if !from.is_empty() {
                    // Nothing stays nothing; everything else is a text, even the word `null`.
                    *is_plain = expanded.is_empty();
                    node.written = Some(Written { text: shown, from });
                }
                *text = expanded;
                true
            }
            Err(Problem::Syntax(message)) => {
                findings.push(Finding::at(node.place.clone(), message).help(
                    "write ${NAME}, ${NAME:-default}, ${NAME:?reason} or ${file:path}; $$ is a dollar",
                ));
                false
            }
            Err(Problem::Missing(message, help)) => {
                if self.is_strict {
                    findings.push(Finding { help, ..Finding::at(node.place.clone(), message) });
                }
                false
            }
        }
    }

    /// `None` if there is nothing to do.
    fn expand(&self, text: &str) -> Result<Option<Expanded>, Problem> {
        let mut expanded = Expanded { text: String::new(), shown: String::new(), from: Vec::new() };
        let mut rest = text;
        let mut has_changed = false;
        while let Some(at) = rest.find('$') {
            let (before, dollar) = rest.split_at(at);
            expanded.text.push_str(before);
            expanded.shown.push_str(before);
            if let Some(after) = dollar.strip_prefix("$$") {
                expanded.text.push('$');
                expanded.shown.push_str("$$");
                has_changed = true;
                rest = after;
            } else if let Some(reference) = dollar.strip_prefix("${") {
                let Some((reference, after)) = reference.split_once('}') else {
                    return Err(Problem::Syntax("`${` is not closed by `}`".to_owned()));
                };
                let Filled { value, shown, from } = self.value(reference)?;
                expanded.text.push_str(&value);
                expanded.shown.push_str(&shown);
                expanded.from.push(from);
                has_changed = true;
                rest = after;
            } else {
                // A variable of jq, or a price.
                expanded.text.push('$');
                expanded.shown.push('$');
                rest = &dollar[1..];
            }
        }
        expanded.text.push_str(rest);
        expanded.shown.push_str(rest);
        Ok(has_changed.then_some(expanded))
    }

    fn value(&self, reference: &str) -> Result<Filled, Problem> {
        if let Some(path) = reference.strip_prefix("file:") {
            let (value, shown) = (self.file(path)?, format!("${{{reference}}}"));
            return Ok(Filled { value, shown, from: format!("file {path}") });
        }
        let length =
            reference.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        let (name, rest) = reference.split_at(length);
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(Problem::Syntax(format!("`${{{reference}}}` names no variable")));
        }
        if rest.contains("${") {
            return Err(Problem::Syntax(format!("the default of `${{{name}…}}` holds another reference")));
        }
        let found = self
            .environment
            .get(name)
            .map_err(|()| Problem::Missing(format!("the variable {name} is not valid UTF-8"), None))?;
        let value = match (found, rest.get(..2), rest.get(2..).unwrap_or_default()) {
            (Some(found), None, _) if rest.is_empty() => found,
            (None, None, _) if rest.is_empty() => {
                let help = format!("set it, or write ${{{name}:-default}}");
                return Err(Problem::Missing(format!("the variable {name} is not set"), Some(help)));
            }
            (Some(found), Some(":-" | ":?"), _) if !found.is_empty() => found,
            (_, Some(":-"), default) => {
                let shown = default.replace('$', "$$");
                return Ok(Filled {
                    value: default.to_owned(),
                    shown,
                    from: format!("the default of {name}"),
                });
            }
            (_, Some(":?"), reason) => {
                let message = format!("the variable {name} is not set: {reason}");
                return Err(Problem::Missing(message, None));
            }
            _ => return Err(Problem::Syntax(format!("after the name {name} only `:-` or `:?` may follow"))),
        };
        Ok(Filled { value, shown: format!("${{{name}}}"), from: format!("environment {name}") })
    }

    /// The content without its last line break.
    fn file(&self, path: &str) -> Result<String, Problem> {
        if path.is_empty() {
            return Err(Problem::Syntax("`${file:}` names no file".to_owned()));
        }
        let path = self.folder.join(path);
        let missing = |why: String| {
            Problem::Missing(format!("the file {} cannot be read: {why}", path.display()), None)
        };
        let mut content = String::new();
        fs::File::open(&path)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_string(&mut content))
            .map_err(|error| missing(error.to_string()))?;
        if content.len() as u64 > LARGEST_FILE {
            return Err(missing(format!("it is larger than {LARGEST_FILE} bytes")));
        }
        let content = content.strip_suffix('\n').unwrap_or(&content);
        Ok(content.strip_suffix('\r').unwrap_or(content).to_owned())
    }
}

/// The folder that relative paths of a configuration file start from.
pub(crate) fn folder(file: Option<&Path>) -> PathBuf {
    file.and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default()
}

struct Expanded {
    text: String,
    /// As it may be shown: with the defaults that are in effect, without what variables and files hold.
    shown: String,
    from: Vec<String>,
}

/// What stands for one reference.
struct Filled {
    value: String,
    shown: String,
    from: String,
}

enum Problem {
    Syntax(String),
    Missing(String, Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str) -> Result<String, String> {
        let environment = Environment::from([("A", "1"), ("EMPTY", ""), ("EVIL", "x\nrelay: {}")]);
        let interpolation =
            Interpolation { environment: &environment, folder: PathBuf::new(), is_strict: true };
        match interpolation.expand(text) {
            Ok(None) => Ok(text.to_owned()),
            Ok(Some(expanded)) => Ok(expanded.text),
            Err(Problem::Syntax(message) | Problem::Missing(message, _)) => Err(message),
        }
    }

    #[test]
    fn what_is_filled_in() {
        for (text, expanded) in [
            ("", ""),
            ("plain", "plain"),
            ("${A}", "1"),
            ("a${A}b${A}", "a1b1"),
            ("${NO:-2}", "2"),
            ("${NO:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-2}", "2"),
            ("${A:?why}", "1"),
            ("${A:-2}", "1"),
            ("$$", "$"),
            ("$${A}", "${A}"),
            ("$$$$${A}", "$$1"),
            (". as $e | $e.type", ". as $e | $e.type"),
            ("5$", "5$"),
            ("${EVIL}", "x\nrelay: {}"),
            ("${NO:-é}", "é"),
        ] {
            assert_eq!(expand(text), Ok(expanded.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_refused() {
        for (text, message) in [
            ("${NO}", "the variable NO is not set"),
            ("${NO:?ask Ann}", "ask Ann"),
            ("${EMPTY:?ask Ann}", "ask Ann"),
            ("${A", "not closed"),
            ("${}", "names no variable"),
            ("${1A}", "names no variable"),
            ("${A-2}", "only `:-` or `:?`"),
            ("${A:+2}", "only `:-` or `:?`"),
            ("${A é}", "only `:-` or `:?`"),
            ("${NO:-${A}}", "another reference"),
            ("${file:}", "names no file"),
            ("${file:/does/not/exist}", "cannot be read"),
        ] {
            let said = expand(text).unwrap_err();
            assert!(said.contains(message), "{text}: {said}");
        }
    }
}
