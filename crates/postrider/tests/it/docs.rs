//! Documentation that names something must name something that exists.

mod errors;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let guarantees = std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let code: String = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let functions: BTreeSet<&str> =
        code.split("fn ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name).collect();
    let mut named = 0;
    for row in guarantees.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let proof = row.rsplit('|').nth(1).unwrap();
        let tests: Vec<&str> = quoted(proof).collect();
        assert!(!tests.is_empty(), "nothing proves: {row}");
        for test in tests {
            assert!(functions.contains(test), "docs/guarantees.md names {test}, which does not exist");
            named += 1;
        }
    }
    assert!(named > 40, "only {named} tests were found in docs/guarantees.md");
}

#[test]
fn every_file_that_the_map_names_exists() {
    let map = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let bases = [
        "",
        "crates/postrider/src/",
        "crates/postrider/src/log/sql/",
        "crates/postrider/migrations/",
        "crates/postrider/tests/it/",
        "crates/postrider-relay/src/",
        "crates/postrider-cli/src/",
    ];
    let files = quoted(&map).filter(|name| {
        Path::new(name).extension().is_some_and(|extension| extension == "rs" || extension == "sql")
            || name.ends_with('/')
    });
    let mut named = 0;
    for name in files {
        let found = bases.iter().any(|base| root().join(base).join(name).exists());
        assert!(found, "docs/architecture.md names {name}, which does not exist");
        named += 1;
    }
    assert!(named > 50, "only {named} files were found in docs/architecture.md");
}

/// The map says which crate may know which, and that files stay small enough to be read.
#[test]
fn the_layers_and_the_sizes_are_as_the_map_says() {
    let forbidden = [
        ("postrider", &["postrider-relay", "postrider-cli", "postrider-testkit"][..]),
        ("postrider-relay", &["postrider-cli", "postrider-testkit"]),
        ("postrider-cli", &["postrider-testkit"]),
        ("postrider-testkit", &["postrider-cli"]),
    ];
    for (name, strangers) in forbidden {
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let linked = manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap();
        for stranger in strangers {
            let known = linked.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(stranger));
            assert!(!known, "{name} depends on {stranger}");
        }
    }
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    for path in files {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 600, "{} has {lines} lines: which noun is hiding in it?", path.display());
    }
}

/// What the pages link to: files, and headings in them.
#[test]
fn every_link_leads_somewhere() {
    let pages = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "crates/postrider/README.md"];
    let mut pages: Vec<PathBuf> = pages.map(|name| root().join(name)).into();
    for folder in ["docs", "docs/sinks"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{} links to {link}, which is not there", page.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let found = text.lines().filter_map(|line| line.strip_prefix('#')).any(|line| {
                    let heading = line.trim_start_matches('#').trim().to_lowercase();
                    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
                    kept.collect::<String>().replace(' ', "-") == anchor
                });
                assert!(found, "{} links to {link}: no such heading", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 20, "only {links} links");
}
