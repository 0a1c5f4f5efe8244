//! What may not come into the program: unsafe code of ours, and dependencies that break a rule of `deny.toml`.
//!
//! `./dev test` holds the real tree against `deny.toml`; here it is shown that the rules bite, on small trees that each break one.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use postrider_testkit::Run;

#[test]
fn fault_116_every_crate_forbids_unsafe_code() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut roots = 0;
    for entry in fs::read_dir(crates).unwrap() {
        for root in ["src/lib.rs", "src/main.rs"] {
            let path = entry.as_ref().unwrap().path().join(root);
            if let Ok(text) = fs::read_to_string(&path) {
                assert!(text.contains("#![forbid(unsafe_code)]"), "{}", path.display());
                roots += 1;
            }
        }
    }
    assert!(roots >= 4, "found only {roots} crate roots");
    let workspace = fs::read_to_string(crates.join("../Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"forbid\""));
}

/// Paths and their texts.
type Files<'a> = &'a [(&'a str, &'a str)];

/// A crate with one dependency `inner`, and what cargo deny says to it under our rules.
fn judged(inner: &str, files: Files<'_>) -> (bool, String) {
    // Goes away with the run.
    let folder = Run::current().unwrap().dir().join(format!("deny-{:08x}", rand::random::<u32>()));
    let here = folder.to_str().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("HERE", here)).unwrap();
    };
    let package = |name: &str, version: &str, more: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"{version}\"\nedition = \"2024\"\n{more}\n")
    };
    write(
        "Cargo.toml",
        &package("outer", "0.1.0", &format!("license = \"MIT\"\npublish = false\n[dependencies]\n{inner}")),
    );
    write("src/lib.rs", "");
    write("inner/Cargo.toml", &package("inner", "1.0.0", "license = \"MIT\""));
    write("inner/src/lib.rs", "");
    for (path, text) in files {
        write(path, text);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::copy(root.join("deny.toml"), folder.join("deny.toml")).unwrap();
    // A home of its own, so that nothing of this stays in cargo's.
    let home = folder.join("home");
    let run = |command: &mut Command| -> Output {
        command.current_dir(&folder).env("CARGO_HOME", &home).output().unwrap()
    };
    if inner.contains("git =") {
        let inner = folder.join("inner");
        for arguments in ["init -q", "add .", "-c user.name=x -c user.email=x commit -q -m x"] {
            let done = run(Command::new("git").arg("-C").arg(&inner).args(arguments.split(' ')));
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    }
    let locked = run(Command::new(env!("CARGO")).arg("generate-lockfile"));
    assert!(locked.status.success(), "{}", String::from_utf8_lossy(&locked.stderr));
    let deny = postrider_testkit::cache().join("tools/bin/cargo-deny");
    let done =
        run(Command::new(&deny).args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]));
    (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn fault_116_a_dependency_that_breaks_a_rule_is_refused() {
    const BY_PATH: &str = "inner = { path = \"inner\" }";
    let (good, said) = judged(BY_PATH, &[]);
    assert!(good, "{said}");

    let gpl = "[package]\nname = \"inner\"\nversion = \"1.0.0\"\nlicense = \"GPL-3.0-only\"";
    let newer = "[package]\nname = \"inner\"\nversion = \"2.0.0\"\nlicense = \"MIT\"";
    let twice = format!("{BY_PATH}\nnewer = {{ package = \"inner\", path = \"newer\" }}");
    let broken: [(&str, Files<'_>, &str); 4] = [
        (BY_PATH, &[("inner/Cargo.toml", gpl)], "failed to satisfy license requirements"),
        (BY_PATH, &[("inner/build.rs", "fn main() {}")], "error[build-script-not-allowed]"),
        (&twice, &[("newer/Cargo.toml", newer), ("newer/src/lib.rs", "")], "error[duplicate]"),
        ("inner = { git = \"file://HERE/inner\" }", &[], "error[source-not-allowed]"),
    ];
    for (inner, files, complaint) in broken {
        let (good, said) = judged(inner, files);
        assert!(!good && said.contains(complaint), "{complaint} was expected:\n{said}");
    }
}
