//! The files that sinks write, as they are on this machine.

use std::path::Path;

use postrider_relay::SinkSettings;
use rustix::fs::{Access, access, statvfs};

use super::check::Report;
use crate::config::{ends_foreign, file_of};
use crate::output;

/// Less than this is soon full.
const LITTLE: u64 = 1 << 30;

pub(super) fn examine(sinks: &[SinkSettings], report: &mut Report) {
    for sink in sinks {
        if let Some(path) = file_of(&sink.target) {
            file(&sink.name, &path, report);
        }
    }
}

fn file(sink: &str, path: &Path, report: &mut Report) {
    const NAME: &str = "files of sinks";
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = path.display();
    if path.exists() && !path.is_file() {
        return report.bad(
            NAME,
            format!("{sink}: {shown} is no regular file"),
            "move it away, or name another path",
        );
    }
    // A file is also renamed, if it is rotated, and a new one begun.
    let may_write = access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .and_then(|()| if path.exists() { access(path, Access::READ_OK | Access::WRITE_OK) } else { Ok(()) });
    if let Err(error) = may_write {
        return report.bad(
            NAME,
            format!("{sink}: {shown} cannot be written by this user: {error}"),
            "create its folder, or give the user of the relay the right to write there",
        );
    }
    if ends_foreign(path) {
        return report.bad(
            NAME,
            format!("{sink}: {shown} ends with something that is no event, and is not written to"),
            "name another path, or move the file away",
        );
    }
    match statvfs(folder) {
        Ok(disk) => {
            let room = disk.f_bavail.saturating_mul(disk.f_frsize);
            let megabytes = i64::try_from(room / 1_000_000).unwrap_or(i64::MAX);
            let detail = format!(
                "{sink}: {shown} can be written; its disk has {} MB free",
                output::thousands(megabytes)
            );
            if room < LITTLE {
                report.warn(NAME, detail, "make room, or let the sink rotate and keep fewer files");
            } else {
                report.ok(NAME, detail);
            }
        }
        Err(error) => report.warn(
            NAME,
            format!("{sink}: how full the disk of {shown} is cannot be asked: {error}"),
            "look at it with df",
        ),
    }
}
