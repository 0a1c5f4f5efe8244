//! No crate of ours may contain unsafe code. (Licences, bans and sources of dependencies are checked by `./dev test`.)

use std::fs;
use std::path::Path;

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
