//! A directory that is gone when the test is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch {
    path: PathBuf,
    is_mounted: bool,
}

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("postrider-relay-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self { path, is_mounted: false }
    }

    /// With a file system of its own that has room for so many bytes. Needs the right to mount.
    pub fn with_room_for(bytes: usize) -> Self {
        let mut scratch = Self::new();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(&scratch.path)
            .status()
            .unwrap();
        assert!(status.success(), "this test mounts a small tmpfs and needs to be root");
        scratch.is_mounted = true;
        scratch
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
