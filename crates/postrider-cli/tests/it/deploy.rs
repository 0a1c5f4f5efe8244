//! What is in `deploy/` is checked by the tools that will read it, offline: promtool, the schemas of Kubernetes,
//! systemd-analyze, hadolint. `./dev setup` installs them. The image is not built.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::End;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What `./dev setup` fetched with pip.
fn pip() -> PathBuf {
    postrider_testkit::cache().join("pip")
}

/// A directory that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("postrider-deploy-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The first column of the table of metrics in the documentation, which a test next to the code keeps true.
fn documented() -> BTreeSet<String> {
    let docs = read(root().join("docs/operating.md"));
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned));
    rows.filter(|name| is_ours(name)).collect()
}

fn is_ours(word: &str) -> bool {
    word.starts_with("postrider_") || word.starts_with("process_")
}

/// The metrics that a text names.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| is_ours(word));
    let base = |word: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

fn alarms() -> Vec<String> {
    let rules = read(deploy("prometheus/alerts.yaml"));
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned)).collect()
}

#[test]
fn every_alarm_fires_and_is_quiet_when_all_is_well() {
    let tests = deploy("prometheus/alerts_test.yaml");
    End::of(Command::new("promtool").args(["check", "rules"]).arg(deploy("prometheus/alerts.yaml")))
        .expect(0);
    End::of(Command::new("promtool").args(["test", "rules"]).arg(&tests)).expect(0);
    let tests = read(tests);
    let alarms = alarms();
    assert!(alarms.len() > 10, "{alarms:?}");
    for alarm in alarms {
        assert!(tests.contains(&format!("- {{ alertname: {alarm}, eval_time: ")), "{alarm} is never quiet");
        let fires = tests.split(&format!("- alertname: {alarm}\n")).nth(1).unwrap_or_default();
        let expected = fires.lines().take(3).any(|line| line.trim() == "exp_alerts:");
        assert!(expected, "no test makes {alarm} fire");
    }
}

#[test]
fn every_alarm_has_a_section_that_says_what_to_do() {
    let (rules, docs) = (read(deploy("prometheus/alerts.yaml")), read(root().join("docs/operating.md")));
    for alarm in alarms() {
        assert!(docs.contains(&format!("\n### {alarm}\n")), "docs/operating.md says nothing about {alarm}");
        let runbook = format!("runbook: docs/operating.md#{}\n", alarm.to_lowercase());
        assert!(rules.contains(&runbook), "{alarm} does not point at its section");
    }
    let known = alarms();
    for section in docs.lines().filter_map(|line| line.strip_prefix("### Postrider")) {
        assert!(known.contains(&format!("Postrider{section}")), "there is no alarm Postrider{section}");
    }
}

#[test]
fn every_metric_that_is_asked_for_is_one_we_export() {
    let documented = documented();
    assert!(documented.len() > 30, "{documented:?}");
    for file in ["prometheus/alerts.yaml", "prometheus/alerts_test.yaml", "grafana/dashboard.json"] {
        let asked = metrics(&read(deploy(file)));
        let unknown: Vec<&String> = asked.difference(&documented).collect();
        assert!(unknown.is_empty() && asked.len() > 5, "{file} asks for {unknown:?}");
    }
}

#[test]
fn every_query_of_the_dashboard_can_be_read() {
    let dashboard: Value = serde_json::from_str(&read(deploy("grafana/dashboard.json"))).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() > 20, "{queries:?}");
    // As rules, because promtool reads nothing else. Grafana fills the variables in.
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in queries.iter().enumerate() {
        let query = query.replace("$__rate_interval", "1m");
        let _ = writeln!(rules, "      - {{ record: 'query:{number}', expr: '{query}' }}");
    }
    let folder = Folder::new("dashboard");
    let file = folder.write("rules.yaml", &rules);
    End::of(Command::new("promtool").args(["check", "rules"]).arg(file)).expect(0);
}

#[test]
fn the_manifests_are_what_kubernetes_takes() {
    let validate = |files: &[PathBuf]| {
        End::of(
            Command::new("/usr/bin/python3")
                .args(["-m", "kubernetes_validate", "--strict", "--no-warn"])
                .args(files)
                .env("PYTHONPATH", pip()),
        )
    };
    let files: Vec<PathBuf> =
        fs::read_dir(deploy("kubernetes")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    validate(&files).expect(0);
    // It does look.
    let folder = Folder::new("kubernetes");
    let wrong = read(deploy("kubernetes/deployment.yaml")).replace("periodSeconds", "periodSecond");
    let end = validate(&[folder.write("deployment.yaml", &wrong)]).expect(1);
    assert!((end.stdout + &end.stderr).contains("periodSecond"));
}

/// The number in front of `unit` in the first line with `key`.
fn number(text: &str, key: &str, unit: &str) -> u64 {
    let (_, rest) = text.split_once(key).unwrap_or_else(|| panic!("no {key}"));
    let digits: String = rest.chars().skip_while(|c| *c == ' ').take_while(char::is_ascii_digit).collect();
    assert!(rest.trim_start()[digits.len()..].starts_with(unit), "{key} is not in {unit}");
    digits.parse().unwrap()
}

#[test]
fn the_limits_leave_room_to_end_by_itself() {
    let configuration = read(deploy("kubernetes/configmap.yaml"));
    let megabytes = number(&configuration, "memory_limit:", "MB");
    let drain = number(&configuration, "drain:", "s");

    let pod = read(deploy("kubernetes/deployment.yaml"));
    let limit = number(&pod, "limits: { memory:", "Mi") * (1 << 20) / 1_000_000;
    assert!(limit * 4 >= megabytes * 5, "{limit} MB kills before {megabytes} MB can drain");
    assert!(number(&pod, "terminationGracePeriodSeconds:", "\n") >= 2 * drain);
    for path in [
        "livenessProbe:\n            httpGet: { path: /livez",
        "readinessProbe:\n            httpGet: { path: /readyz",
    ] {
        assert!(pod.contains(path), "no {path}");
    }
    let port = number(&pod, "containerPort:", " }");
    assert_eq!(number(&configuration, "listen: 0.0.0.0:", " }"), port);

    let unit = read(deploy("systemd/postrider.service"));
    assert!(number(&unit, "MemoryMax=", "M\n") * (1 << 20) / 1_000_000 * 4 >= megabytes * 5);
    assert!(number(&unit, "TimeoutStopSec=", "s\n") >= 2 * drain);
    assert!(number(&unit, "WatchdogSec=", "s\n") > 30, "a loop counts as stuck after 30 s");
}

#[test]
fn the_unit_is_what_systemd_takes() {
    let folder = Folder::new("systemd");
    let unit = read(deploy("systemd/postrider.service"));
    // The binary must be there, and it is not installed.
    let here = unit
        .replace("ExecStart=/usr/bin/postrider", &format!("ExecStart={}", env!("CARGO_BIN_EXE_postrider")));
    assert_ne!(unit, here);
    let file = folder.write("postrider.service", &here);
    let end = End::of(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file)).expect(0);
    assert_eq!(end.stdout + &end.stderr, "");
    // 0 is a locked room, 100 an open door.
    End::of(
        Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true", "--threshold=20"])
            .arg(&file),
    )
    .expect(0);
}

#[test]
fn the_dockerfile_has_nothing_for_its_linter() {
    let hadolint = pip().join("bin/hadolint");
    let end = End::of(Command::new(&hadolint).arg("--no-color").arg(deploy("Dockerfile"))).expect(0);
    assert_eq!(end.stdout + &end.stderr, "");
    assert!(read(deploy("Dockerfile")).contains("not built"), "it says that nobody builds it here");
    // The image is built with the compiler this code is tested with.
    let toolchain = read(root().join("rust-toolchain.toml"));
    let channel = toolchain.split('"').nth(1).unwrap();
    let wanted = channel
        .rsplit_once('.')
        .filter(|_| channel.matches('.').count() == 2)
        .map_or(channel, |(minor, _)| minor);
    assert!(
        read(deploy("Dockerfile")).contains(&format!("FROM rust:{wanted}-")),
        "rust-toolchain.toml says {channel}"
    );
}
