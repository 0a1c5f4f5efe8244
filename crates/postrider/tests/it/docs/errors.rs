//! `docs/errors.md` against the source: every error an operator may see, in the words it is printed with.

use std::collections::BTreeSet;

use super::{root, sources};

/// The rows of the first table under a heading, as cells.
fn table<'t>(page: &'t str, heading: &str) -> Vec<Vec<&'t str>> {
    tables(page, heading).swap_remove(0)
}

/// The rows of each table under a heading, as cells.
fn tables<'t>(page: &'t str, heading: &str) -> Vec<Vec<Vec<&'t str>>> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("docs/errors.md has no section {heading}"));
    let blocks = section.split("\n\n").filter(|block| block.starts_with("| "));
    // The first row is the head, the second separates it.
    blocks
        .map(|block| {
            let rows = block.lines().skip(2);
            rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
        })
        .collect()
}

fn errors() -> String {
    std::fs::read_to_string(root().join("docs/errors.md")).unwrap()
}

fn source(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The string literals in a piece of source, as the compiler reads them.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some((_, behind)) = rest.split_once('"') {
        let mut text = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next() {
                Some((at, '"')) => break at,
                Some((_, '\\')) => match chars.next() {
                    Some((_, '\n')) => {
                        // The next line goes on behind its indentation.
                        let left = chars.as_str();
                        let skipped = left.len() - left.trim_start().len();
                        for _ in 0..skipped {
                            chars.next();
                        }
                    }
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, other)) => text.push(other),
                    None => return found,
                },
                Some((_, other)) => text.push(other),
                None => return found,
            }
        };
        found.push(text);
        rest = &behind[end + 1..];
    }
    found
}

/// What stands before the bracket that closes a call.
fn arguments(call: &str) -> &str {
    let (mut depth, mut is_text, mut is_escaped) = (1, false, false);
    for (at, c) in call.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_text,
            '"' => is_text = !is_text,
            '(' if !is_text => depth += 1,
            ')' if !is_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &call[..at];
        }
    }
    panic!("a call does not end: {call}")
}

/// A format string as the page has it: `…` in the place of what is filled in, on one line.
fn as_printed(format: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for c in format.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    text.push('…');
                }
            }
            '\n' => text.push(' '),
            c if depth == 0 => text.push(c),
            _ => {}
        }
    }
    text
}

/// The variants of an error enum and their texts.
fn variants(path: &str, name: &str) -> Vec<(String, String)> {
    let source = source(path);
    let start = source.find(&format!("pub enum {name} {{")).unwrap();
    let body = &source[start..];
    let body = &body[..body.find("\n}\n").unwrap()];
    body.split("#[error(")
        .skip(1)
        .map(|piece| {
            let (attribute, rest) = piece.split_once(")]\n").unwrap();
            let variant: String = rest.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect();
            let text = literals(attribute).first().map(|text| as_printed(text));
            (variant, text.unwrap_or_default())
        })
        .collect()
}

#[test]
fn every_kind_of_trouble_with_a_sink_is_explained() {
    let page = errors();
    let policy = source("crates/postrider-relay/src/policy.rs");
    let policy = &policy[policy.find("impl UnavailableKind").unwrap()..];
    for (action, heading) in [("wait(", "A sink is unavailable"), ("park(", "An event is refused")] {
        let in_code: Vec<Vec<String>> =
            policy.split(action).skip(1).map(|call| literals(call).into_iter().take(3).collect()).collect();
        let on_page: Vec<Vec<String>> = table(&page, heading)
            .into_iter()
            .map(|row| row.into_iter().map(|cell| cell.trim_matches('`').to_owned()).collect())
            .collect();
        assert!(in_code.len() >= 6, "{in_code:?}");
        assert_eq!(on_page, in_code, "docs/errors.md, {heading}");
    }
}

#[test]
fn every_error_of_the_log_and_the_relay_is_explained() {
    let page = errors();
    let log = variants("crates/postrider/src/log/error.rs", "Error");
    let relay = variants("crates/postrider-relay/src/relay.rs", "RelayError");
    assert!(log.len() > 20 && relay.len() >= 5, "{log:?} {relay:?}");
    for (in_code, heading) in
        [(log, "The log cannot be read or changed"), (relay, "The relay does not start, or ends")]
    {
        let on_page: Vec<(String, String)> = table(&page, heading)
            .into_iter()
            .map(|row| (row[0].trim_matches('`').to_owned(), row[1].to_owned()))
            .collect();
        let in_code: Vec<(String, String)> = in_code
            .into_iter()
            // Transparent: the text is that of the error inside.
            .map(|(name, text)| if text.is_empty() { (name, "one of the table above".to_owned()) } else { (name, text) })
            .collect();
        assert_eq!(on_page, in_code, "docs/errors.md, {heading}");
    }
}

#[test]
fn every_error_of_a_declared_table_is_explained() {
    let page = errors();
    for (path, least, heading) in [
        ("crates/postrider/src/capture/failure.rs", 19, "A table cannot be captured"),
        ("crates/postrider/src/outbox/failure.rs", 9, "An outbox table cannot be adopted"),
    ] {
        let in_code = variants(path, "Error");
        assert!(in_code.len() > least, "{in_code:?}");
        let on_page: Vec<(String, String)> = table(&page, heading)
            .into_iter()
            .map(|row| (row[0].trim_matches('`').to_owned(), row[1].to_owned()))
            .collect();
        let in_code: Vec<(String, String)> = in_code
            .into_iter()
            .map(|(name, text)| match (name.as_str(), text.is_empty()) {
                (_, false) => (name, text),
                ("Table", true) => (name, "one of the table above".to_owned()),
                (_, true) => (name, "the server's own words".to_owned()),
            })
            .collect();
        assert_eq!(on_page, in_code, "docs/errors.md, {heading}");
    }
}

#[test]
fn every_remedy_for_a_servers_error_is_listed() {
    let advice = source("crates/postrider/src/log/advice.rs");
    let arms = advice.split("Some(match code {").nth(1).unwrap().split("_ => return None").next().unwrap();
    // The codes of an arm stand before its arrow, the remedy behind it.
    let mut in_code = Vec::new();
    let mut codes: Vec<String> = Vec::new();
    for piece in literals(arms) {
        if piece.len() == 5 {
            codes.push(format!("`{piece}`"));
        } else {
            in_code.push((codes.join(", "), piece));
            codes.clear();
        }
    }
    let page = errors();
    let on_page: Vec<(String, String)> = tables(&page, "The log cannot be read or changed")
        .swap_remove(1)
        .into_iter()
        .map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect();
    assert_eq!(on_page, in_code, "docs/errors.md, SQLSTATE");
}

#[test]
fn every_warning_is_explained() {
    let page = errors();
    let on_page: BTreeSet<&str> =
        table(&page, "Lines of the relay's log").into_iter().map(|row| row[0]).collect();
    let mut files = Vec::new();
    for name in ["postrider", "postrider-relay", "postrider-cli"] {
        sources(&root().join("crates").join(name).join("src"), &mut files);
    }
    let mut in_code = BTreeSet::new();
    for path in files.iter().filter(|path| !path.ends_with("tests.rs")) {
        let text = std::fs::read_to_string(path).unwrap();
        let calls = text.split("tracing::warn!(").skip(1).chain(text.split("tracing::error!(").skip(1));
        in_code.extend(calls.map(|call| as_printed(literals(arguments(call)).last().unwrap())));
    }
    let in_code: BTreeSet<&str> = in_code.iter().map(String::as_str).collect();
    assert_eq!(on_page, in_code, "docs/errors.md, Lines of the relay's log");
}

#[test]
fn every_exit_status_is_explained() {
    let help = source("crates/postrider-cli/src/exit.rs");
    let help = help.split("Exit status:\n").nth(1).unwrap();
    let in_code: Vec<(&str, &str)> =
        help[..help.find("\";").unwrap()].lines().map(|line| line.trim().split_once("  ").unwrap()).collect();
    let page = errors();
    let on_page: Vec<(&str, &str)> =
        table(&page, "Exit status").into_iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(on_page, in_code);
}
