//! What must not be shown: values of keys that are secrets, and of keys nobody knows, which may be a secret's name misspelt.

use std::ops::Range;

use super::shape::Shape;
use super::tree::{Node, Place, Value};

const WORDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "api_key",
    "apikey",
    "private_key",
];

/// Whether a key of this name holds a secret, whatever its schema says.
pub(crate) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    WORDS.iter().any(|word| key.contains(word))
}

/// Nothing but `${NAME}` or `${file:path}`: no default in it that could be a secret.
pub(crate) fn is_reference(text: &str) -> bool {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| {
        !inner.contains(['$', '{', '}']) && !inner.contains(":-") && !inner.contains(":?")
    })
}

/// A line of a file whose structure is unknown: everything after the name of a secret goes.
pub(crate) fn hush(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let ends = WORDS.iter().filter_map(|word| lower.find(word).map(|at| at + word.len()));
    match ends.min().and_then(|end| Some(end + line.get(end..)?.find(':')?)) {
        Some(colon) => format!("{}: ***", &line[..colon]),
        None => line.to_owned(),
    }
}

/// The parts of the file that are secret.
pub(crate) fn masks(tree: &Node, shape: &Shape) -> Vec<Range<usize>> {
    let mut masks = Vec::new();
    collect(tree, &mut Vec::new(), shape, false, &mut masks);
    masks
}

fn collect(
    node: &Node,
    path: &mut Vec<String>,
    shape: &Shape,
    is_secret: bool,
    masks: &mut Vec<Range<usize>>,
) {
    match &node.value {
        Value::Scalar { text, .. } => {
            if is_secret
                && !is_reference(text)
                && let Place::File { bytes, .. } = &node.place
            {
                masks.push(bytes.clone());
            }
        }
        Value::List(items) => {
            for item in items {
                collect(item, path, shape, is_secret, masks);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                path.push(entry.key.clone());
                let is_secret = is_secret || shape.is_secret(path);
                collect(&entry.value, path, shape, is_secret, masks);
                path.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_hushed_after_the_name_of_a_secret() {
        assert_eq!(hush("  sasl_password : \"canary"), "  sasl_password : ***");
        assert_eq!(hush("{ a: b, TOKEN: canary"), "{ a: b, TOKEN: ***");
        assert_eq!(hush("retention: 7d"), "retention: 7d");
    }

    #[test]
    fn a_reference_is_no_secret_but_its_default_may_be() {
        for text in ["${NAME}", "${file:/run/secrets/name}"] {
            assert!(is_reference(text), "{text}");
        }
        for text in
            ["canary", "${NAME:-canary}", "${NAME}canary", "${NAME} ${OTHER}", "${NAME:?canary}", "${"]
        {
            assert!(!is_reference(text), "{text}");
        }
    }
}
