//! Who holds the lock of a file, as far as the system tells.

use std::fs;

/// In words: `process 4711 (postrider)`, and whether it is stopped. Nothing where the system does not tell: it does not show the processes
/// of other containers, nor those of other machines with a network file system.
pub(crate) fn of((device, inode): (u64, u64)) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = holder(&locks, device, inode)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    Some(in_words(pid, stat.as_deref()))
}

/// The process that has locked the file. A line is `1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF`.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (device >> 8 & 0xfff | device >> 32 & !0xfff, device & 0xff | device >> 12 & !0xff);
    let file = format!("{major:02x}:{:02x}:{inode}", minor & 0xffff_ffff);
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // One that waits for it has an arrow in between.
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
        pid.parse().ok().filter(|pid| *pid > 0 && place == file)
    })
}

/// What `/proc/PID/stat` says: `4711 (postrider) T …`. A name may hold anything, brackets too.
fn in_words(pid: u32, stat: Option<&str>) -> String {
    let told = stat.and_then(|stat| {
        let (before, after) = stat.rsplit_once(')')?;
        Some((before.split_once('(')?.1, after.trim_start().chars().next()?))
    });
    match told {
        Some((name, 'T' | 't')) => format!("process {pid} ({name}), which is stopped,"),
        Some((name, _)) => format!("process {pid} ({name})"),
        None => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 1 fd:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 fd:01:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 4712 fd:01:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 103:02:7 0 EOF\n";
        assert_eq!(holder(locks, 0xfd01, 42), Some(4711));
        assert_eq!(holder(locks, 0xfd01, 43), None);
        assert_eq!(holder(locks, 0x1_0302, 7), None, "one of another container");
    }

    #[test]
    fn a_stopped_one_is_called_so() {
        assert_eq!(in_words(7, Some("7 (a) b) T 1 2")), "process 7 (a) b), which is stopped,");
        assert_eq!(in_words(7, Some("7 (postrider) S 1 2")), "process 7 (postrider)");
        assert_eq!(in_words(7, None), "process 7");
    }
}
