//! `postrider completions` and `postrider man`.

use crate::support::{End, postrider};

#[test]
fn every_shell_gets_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let end = End::of(&mut postrider(&["completions", shell])).expect(0);
        assert!(end.stdout.contains("postrider") && end.stdout.contains("discard"), "{shell}");
    }
    assert_eq!(End::of(&mut postrider(&["completions", "bash", "--json"])).expect(0).json()["shell"], "bash");
    End::of(&mut postrider(&["completions", "dos"])).expect(64);
}

#[test]
fn every_command_has_a_page() {
    let directory = std::env::temp_dir().join(format!("postrider-man-{}", std::process::id()));
    let end = End::of(&mut postrider(&["man", "--json", directory.to_str().unwrap()])).expect(0);
    let pages = end.json()["pages"].as_array().unwrap().clone();
    for name in ["postrider.1", "postrider-status.1", "postrider-dead-retry.1", "postrider-sinks-forget.1"] {
        assert!(pages.iter().any(|page| page == name), "{name} in {pages:?}");
        let page = std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(page.starts_with(".ie") && page.contains(".SH NAME"), "{name}: {page}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
