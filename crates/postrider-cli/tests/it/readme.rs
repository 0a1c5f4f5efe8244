//! What the README tells people to type.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::{End, postrider, postrider_on};

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap()
}

/// The blocks of code in a language.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block).collect()
}

#[test]
fn its_configuration_is_one() {
    let text = readme();
    let path = std::env::temp_dir().join(format!("postrider-readme-{}.yaml", std::process::id()));
    for block in blocks(&text, "yaml") {
        fs::write(&path, block).unwrap();
        // Its folder is another machine's.
        let words = ["config", "check", "--depth", "syntax", "--config", path.to_str().unwrap()];
        End::of(&mut postrider_on("postgres://owner@db.example/shop", &words)).expect(0);
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn its_commands_are_ours() {
    let text = readme();
    let mut commands = BTreeSet::new();
    for line in blocks(&text, "sh").iter().flat_map(|block| block.lines()) {
        let Some(words) = line.strip_prefix("postrider ") else { continue };
        let words: Vec<&str> = words.split('#').next().unwrap().split_whitespace().collect();
        // Help wins over everything but a word that is not known.
        let mut with_help = words.clone();
        with_help.push("--help");
        End::of(&mut postrider(&with_help)).expect(0);
        commands.insert(words[0]);
    }
    assert!(commands.is_superset(&["init", "run", "status", "doctor"].into()), "{commands:?}");
}
