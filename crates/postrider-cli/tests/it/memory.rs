//! What a relay takes of the machine's memory.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::support::postrider_on;
use crate::world::{ask, installed, run};

/// The most memory a process has had, in kB; nothing when it has ended.
fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Delivers everything to new sinks, and answers the most memory that took, in kB.
async fn drain(url: &str, folder: &Path, sinks: &[(&str, &str)]) -> u64 {
    let config = folder.join("postrider.yaml");
    let sink = |(name, target): &(&str, &str)| format!("  {name}: {{ {target}, start: earliest }}\n");
    let sinks = sinks.iter().map(sink).collect::<Vec<_>>().concat();
    std::fs::write(&config, format!("http: {{ listen: \"off\" }}\nsinks:\n{sinks}")).unwrap();
    let mut child = postrider_on(url, &["run", "--once", "--config", config.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    let status = loop {
        most = most.max(peak(child.id()).unwrap_or_default());
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(status.success(), "{status}");
    most
}

#[tokio::test]
async fn fault_38_a_huge_transaction_is_carried_in_bounded_memory() {
    let events = if std::env::var_os("POSTRIDER_SOAK").is_some() { 1_000_000 } else { 200_000 };
    let database = installed().await;
    let folder = std::env::temp_dir().join(format!("postrider-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    run(
        &database,
        format!(
            "select count(postrider.emit('huge', json_build_object('n', n, 'text', repeat('x', 500)), key => (n % 97)::text))
             from generate_series(1, {events}) n"
        ),
    )
    .await;
    assert_eq!(
        ask(&database, "select count(distinct xid) from postrider.events where type = 'huge'").await,
        "1"
    );
    let huge = drain(&database.url(), &folder, &[("huge", "\"null\": {}")]).await;
    std::fs::remove_dir_all(&folder).unwrap();
    // The payloads alone are 100 MB: a relay that took a transaction whole would hold them, and what is made of them.
    assert!(huge < 100_000, "{huge} kB for one transaction of {events} events");
}

/// Each of them alone takes most of the limit: all sinks have to take their turns.
#[tokio::test]
async fn fault_38_four_sinks_with_huge_events_keep_to_the_memory_limit() {
    const LIMIT: u64 = 500_000_000;
    const EVENTS: u64 = 2;
    let database = installed().await;
    let folder = std::env::temp_dir().join(format!("postrider-memory-four-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    run(
        &database,
        format!(
            "select postrider.emit('huge', json_build_object('text', repeat('x', 60000000)), key => n::text)
             from generate_series(1, {EVENTS}) n"
        ),
    )
    .await;
    let path = |name: &str| folder.join(name);
    let file = |name: &str| format!("file: {{ path: {}, fsync: never }}", path(name).display());
    let names = ["a", "b", "c", "d"];
    let targets = names.map(file);
    let sinks: Vec<(&str, &str)> = names.into_iter().zip(targets.iter().map(String::as_str)).collect();
    let most = drain(&database.url(), &folder, &sinks).await * 1024;
    for name in names {
        let bytes = std::fs::metadata(path(name)).unwrap().len();
        assert_eq!(bytes / 60_000_000, EVENTS, "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{most} bytes at most");
    assert!(most < LIMIT, "{most} bytes");
}
