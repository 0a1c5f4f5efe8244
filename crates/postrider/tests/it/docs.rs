//! Documentation that names something must name something that exists.

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
    let bases = ["", "crates/postrider/src/", "crates/postrider/migrations/", "crates/postrider/"];
    let files = quoted(&map).filter(|name| {
        Path::new(name).extension().is_some_and(|extension| extension == "rs" || extension == "sql")
            || name.ends_with('/')
    });
    let mut named = 0;
    for name in files {
        let folders = ["crates/postrider/tests/it/", "crates/postrider/src/log/sql/"];
        let found = bases.iter().chain(&folders).any(|base| root().join(base).join(name).exists());
        assert!(found, "docs/architecture.md names {name}, which does not exist");
        named += 1;
    }
    assert!(named > 20, "only {named} files were found in docs/architecture.md");
}
