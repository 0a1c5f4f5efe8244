//! The system user that servers run as: `PostgreSQL` and `PgBouncer` refuse to run as root.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The system user that servers run as.
///
/// Not root: ourselves. Root: `postgres` where that exists, else `nobody`. It must have a passwd entry,
/// because initdb looks up its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name, empty when we are not root (nobody asks for it then).
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    switch: bool,
}

impl User {
    /// The user for this process's servers.
    pub fn for_servers() -> Result<Self> {
        let uid = rustix::process::getuid();
        if !uid.is_root() {
            let gid = rustix::process::getgid();
            return Ok(Self { name: String::new(), uid: uid.as_raw(), gid: gid.as_raw(), switch: false });
        }
        let passwd = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        for name in ["postgres", "nobody"] {
            if let Some((uid, gid)) = passwd.lines().find_map(|line| parse(line, name)) {
                return Ok(Self { name: name.to_owned(), uid, gid, switch: true });
            }
        }
        bail!("running as root, but /etc/passwd has neither `postgres` nor `nobody` to run servers as")
    }

    /// The words that, put before a command, run it as this user; each execs the next in place.
    pub fn prefix(&self) -> Vec<String> {
        if !self.switch {
            return vec!["setpriv".to_owned()];
        }
        vec![
            "setpriv".to_owned(),
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            "--clear-groups".to_owned(),
        ]
    }

    /// The words that, put before others, let them see a file system in memory at `dir`. A mount namespace: nothing has to be unmounted.
    pub(crate) fn with_small_disk(&self, dir: &str, bytes: u64) -> Vec<String> {
        let Self { uid, gid, .. } = self;
        let mount = format!("mount -t tmpfs -o size={bytes},uid={uid},gid={gid},mode=700 tmpfs \"$0\"");
        // Who is not root becomes it in a namespace, mounts, and becomes itself again: PostgreSQL does not run as root.
        let (namespace, back) = if self.switch {
            (vec!["--mount"], String::new())
        } else {
            (
                vec!["--user", "--map-root-user", "--mount"],
                format!("unshare --user --map-user={uid} --map-group={gid} "),
            )
        };
        let mount = if self.switch { mount } else { mount.replace(&format!("uid={uid},gid={gid},"), "") };
        let script = format!("{mount} && exec {back}\"$@\"");
        let words = ["unshare"].into_iter().chain(namespace).chain(["sh", "-c", &script, dir]);
        words.map(str::to_owned).collect()
    }

    /// The words that, put before others, let them see `root` as the root of all files, and `dir` in it as `/srv`. A mount namespace: nothing
    /// has to be unmounted. `root` must have the programs that follow.
    pub(crate) fn inside(&self, root: &Path, dir: &Path) -> Vec<String> {
        let namespace: &[&str] =
            if self.switch { &["--mount"] } else { &["--user", "--map-root-user", "--mount"] };
        let script = "mount --bind \"$1\" \"$0/srv\" && mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" \
            && root=$0 && shift && exec chroot \"$root\" \"$@\"";
        let [root, dir] = [root, dir].map(|path| path.to_string_lossy().into_owned());
        let words = ["unshare"].into_iter().chain(namespace.iter().copied()).chain(["sh", "-c", script]);
        words.map(str::to_owned).chain([root, dir]).collect()
    }

    /// A command that runs `program` as this user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut words = self.prefix().into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg("--").arg(program);
        // Our own directory may be out of that user's reach.
        command.current_dir("/");
        command
    }

    /// Gives `path` to this user.
    pub fn own(&self, path: &Path) -> Result<()> {
        if !self.switch {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("giving {} to {}", path.display(), self.name))
    }
}

fn parse(line: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = line.split(':');
    if fields.next() != Some(name) {
        return None;
    }
    let uid = fields.nth(1)?.parse().ok()?;
    Some((uid, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_ids_from_a_passwd_line() {
        assert_eq!(
            parse("postgres:x:101:104:admin:/var/lib/postgresql:/bin/bash", "postgres"),
            Some((101, 104))
        );
        assert_eq!(parse("postgresql:x:1:1::/:", "postgres"), None);
        assert_eq!(parse("postgres:x", "postgres"), None);
    }
}
