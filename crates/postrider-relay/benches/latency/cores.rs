//! Who has the cores: the producers and their server processes, the relay and its.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use sqlx::{Connection as _, PgConnection};

/// Of the server's processes, and of the thread of this process that produces.
pub(crate) const PRODUCERS: &str = "producers";

/// Ticks since the machine started, by who took them.
#[derive(Default)]
pub(crate) struct Cores {
    idle: f64,
    all: f64,
    taken: BTreeMap<String, f64>,
}

impl Cores {
    /// As they are now. `server` is its first process.
    pub(crate) async fn now(url: &str, server: i32) -> Result<Self> {
        let mut cores = Self::default();
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        let fields: Vec<f64> =
            line.split_whitespace().skip(1).take(8).map(str::parse).collect::<Result<_, _>>()?;
        // Idle, and waiting for the disk.
        (cores.idle, cores.all) = (fields[3] + fields[4], fields.iter().sum());
        let mut connection = PgConnection::connect(url).await?;
        let names: Vec<(i32, String)> = sqlx::query_as(
            "select pid, application_name from pg_stat_activity where pid <> pg_backend_pid()",
        )
        .fetch_all(&mut connection)
        .await?;
        connection.close().await?;
        let names: BTreeMap<i32, String> = names.into_iter().collect();
        for (path, pid) in numbered("/proc")? {
            let Some((name, parent, ticks)) = stat_of(&path) else { continue };
            if parent == server {
                let name = names.get(&pid).filter(|name| !name.is_empty());
                cores.add(format!("server: {}", name.map_or("by itself", String::as_str)), ticks);
            } else if pid == i32::try_from(std::process::id())? {
                for (thread, _) in numbered(&format!("{path}/task"))? {
                    if let Some((name, _, ticks)) = stat_of(&thread) {
                        let whose = if name == PRODUCERS { PRODUCERS } else { "relay" };
                        cores.add(whose.to_owned(), ticks);
                    }
                }
            } else {
                cores.add(format!("beside it: {name}"), ticks);
            }
        }
        Ok(cores)
    }

    fn add(&mut self, whose: String, ticks: f64) {
        *self.taken.entry(whose).or_default() += ticks;
    }

    /// The share of all of them that was busy since.
    pub(crate) fn busy_since(&self, before: &Self) -> f64 {
        1.0 - (self.idle - before.idle) / (self.all - before.all)
    }

    /// Percent of one core that each took since, the most first.
    pub(crate) fn shares_since(&self, before: &Self) -> String {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        #[expect(clippy::cast_precision_loss, reason = "a few cores")]
        let one = (self.all - before.all) / count as f64;
        let mut shares: Vec<(f64, &str)> = self
            .taken
            .iter()
            .map(|(name, ticks)| {
                (100.0 * (ticks - before.taken.get(name).copied().unwrap_or_default()) / one, name.as_str())
            })
            .filter(|(share, _)| *share >= 1.0)
            .collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        let words: Vec<String> = shares.iter().map(|(share, name)| format!("{name} {share:.0}")).collect();
        words.join(", ")
    }
}

/// What has a number for its name in a folder of the system's.
fn numbered(folder: &str) -> Result<Vec<(String, i32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Ok(number) = name.parse() {
            found.push((format!("{folder}/{name}"), number));
        }
    }
    Ok(found)
}

/// The name, the parent and the ticks of a process or a thread that is still there.
fn stat_of(path: &str) -> Option<(String, i32, f64)> {
    let stat = fs::read_to_string(format!("{path}/stat")).ok()?;
    let (begin, rest) = stat.rsplit_once(')')?;
    let name = begin.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some((name, fields.get(1)?.parse().ok()?, ticks))
}
