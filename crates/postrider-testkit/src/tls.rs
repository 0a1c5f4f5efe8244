//! A certification authority for a test, and the certificates of servers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::Run;
use crate::server::run_to_end;
use crate::user::User;

/// A certification authority; its directory goes with the run.
pub struct Authority {
    dir: PathBuf,
}

/// A certificate and its key, readable by the servers' user alone.
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Self> {
        let dir = Run::current()?.dir().join(format!("authority-{:08x}", rand::random::<u32>()));
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711))?;
        let mut command = openssl("req -x509 -newkey rsa:2048 -nodes -days 30");
        command.arg("-subj").arg(format!("/CN=testkit {:08x}", rand::random::<u32>()));
        run_to_end(command.arg("-keyout").arg(dir.join("ca.key")).arg("-out").arg(dir.join("ca.crt")))?;
        Ok(Self { dir })
    }

    /// Its own certificate: what clients trust.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A certificate for `name` (`IP:127.0.0.1`, `DNS:db.example`) that is good for so many days; with `-1` it has expired.
    pub fn issue(&self, name: &str, days: i32) -> Result<Certificate> {
        let stem = format!("{:08x}", rand::random::<u32>());
        let file = |ending: &str| self.dir.join(format!("{stem}.{ending}"));
        let issued = Certificate { certificate: file("crt"), key: file("key") };
        let mut request = openssl("req -newkey rsa:2048 -nodes -subj /CN=server");
        run_to_end(request.arg("-keyout").arg(&issued.key).arg("-out").arg(file("csr")))?;
        fs::write(file("ext"), format!("subjectAltName={name}\n"))?;
        let mut sign = openssl("x509 -req -CAcreateserial");
        sign.arg("-days").arg(days.to_string());
        sign.arg("-in")
            .arg(file("csr"))
            .arg("-extfile")
            .arg(file("ext"))
            .arg("-out")
            .arg(&issued.certificate);
        sign.arg("-CA").arg(self.certificate()).arg("-CAkey").arg(self.dir.join("ca.key"));
        run_to_end(&mut sign)?;
        for path in [&issued.certificate, &issued.key] {
            give(path)?;
        }
        Ok(issued)
    }
}

/// `PostgreSQL` refuses a key that others may read.
fn give(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    User::for_servers()?.own(path)
}

fn openssl(arguments: &str) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' '));
    command
}
