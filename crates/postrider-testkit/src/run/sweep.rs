//! Removes what runs left behind whose every process was killed, janitor included.

use std::fs;
use std::path::Path;

use super::{PREFIX, open_lock};
use crate::process::Process;

/// Removes the directories of dead runs under `parent`. Failures are somebody else's directories: ignored.
pub(super) fn stale_runs(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        if is_stale(&entry.path(), rest) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// `rest` is the directory's name without the prefix: pid, dash, random number.
fn is_stale(dir: &Path, rest: &str) -> bool {
    // A directory that is just being made has no pid file yet: its name must do.
    let pid = fs::read_to_string(dir.join("pid")).ok().and_then(|text| text.trim().parse().ok());
    let pid = pid.or_else(|| rest.split('-').next()?.parse().ok());
    let Some(pid) = pid else { return false };
    if Process::find(pid).is_some() {
        return false;
    }
    // The owner is gone, but its guardians may still be stopping servers (or live in another pid namespace).
    let lock = dir.join("servers.lock");
    !lock.exists() || open_lock(&lock).is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_runs_without_servers_are_swept() {
        let parent = std::env::temp_dir().join(format!("testkit-sweep-{:08x}", rand::random::<u32>()));
        let dead = i32::MAX; // above the kernel's highest pid
        let alive = std::process::id();
        for name in ["stale", "busy", "owned", "young", "young-and-alive", "other"] {
            let dir = match name {
                "young-and-alive" => format!("{PREFIX}{alive}-cafe"),
                "young" => format!("{PREFIX}{dead}-cafe"),
                "other" => "something-else".to_owned(),
                _ => format!("{PREFIX}{name}"),
            };
            fs::create_dir_all(parent.join(&dir)).unwrap();
            let owner = if name == "owned" { alive.to_string() } else { dead.to_string() };
            if !name.starts_with("young") {
                fs::write(parent.join(&dir).join("pid"), owner).unwrap();
            }
        }
        let servers = open_lock(&parent.join(format!("{PREFIX}busy/servers.lock"))).unwrap();
        servers.lock_shared().unwrap();

        stale_runs(&parent);

        let mut left: Vec<_> =
            fs::read_dir(&parent).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let expected = [
            format!("{PREFIX}{alive}-cafe"),
            format!("{PREFIX}busy"),
            format!("{PREFIX}owned"),
            "something-else".into(),
        ];
        assert_eq!(left, expected);
        fs::remove_dir_all(&parent).unwrap();
    }
}
