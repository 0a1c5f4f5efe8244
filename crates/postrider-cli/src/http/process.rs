//! What this process takes of the machine, under the names that every Prometheus client uses.

use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use super::catalogue::{BUILD_INFO, CPU, MAX_FDS, OPEN_FDS, RESIDENT, STARTED, VIRTUAL};
use super::text::Text;

/// Where there is no `/proc`, less is shown.
pub(super) fn write(text: &mut Text) {
    text.family(&BUILD_INFO).sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family(&CPU).sample(&[], cpu_seconds());
    text.family(&STARTED).sample(&[], started());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (metric, field) in [(RESIDENT, "VmRSS:"), (VIRTUAL, "VmSize:")] {
        if let Some(kilobytes) = number(&status, field) {
            text.family(&metric).sample(&[], kilobytes * 1024);
        }
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is the descriptor of this very directory.
        text.family(&OPEN_FDS).sample(&[], entries.count().saturating_sub(1));
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = number(&limits, "Max open files") {
        text.family(&MAX_FDS).sample(&[], most);
    }
}

#[allow(clippy::cast_precision_loss)] // nanoseconds below a second, seconds below an age
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Near enough: the first time anybody asks, which `start_counting` sees to.
pub(super) fn started() -> f64 {
    static STARTED: OnceLock<f64> = OnceLock::new();
    *STARTED.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |age| age.as_secs_f64()))
}

fn number(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}
