//! `postrider config`.

mod broken;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{End, empty_database, postrider, postrider_on};

/// A folder of its own that goes with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("config-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with this `postrider.yaml`.
    pub(crate) fn with(text: &str) -> Self {
        let folder = Self::new();
        folder.write("postrider.yaml", text);
        folder
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), content).unwrap();
    }

    /// The binary inside it.
    pub(crate) fn postrider(&self, words: &[&str]) -> Command {
        let mut command = postrider(words);
        command.current_dir(&self.0).env_remove("POSTRIDER_CONFIG");
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const GOOD: &str = "database: postgres://me@127.0.0.1:1/shop\nsinks:\n  out: { null: {} }\n";

#[test]
fn help_is_there() {
    for words in [&["config", "--help"][..], &["config", "check", "--help"], &["config", "show", "-h"]] {
        let end = End::of(&mut postrider(words)).expect(0);
        assert!(end.stdout.contains("Usage: postrider config"), "{}", end.stdout);
    }
    End::of(&mut postrider(&["config"])).expect(64);
    End::of(&mut postrider(&["config", "check", "--depth", "deep"])).expect(64);
    End::of(&mut postrider(&["config", "show", "--drain", "soon"])).expect(64);
    End::of(&mut postrider(&["config", "show", "--start", "now"])).expect(64);
    End::of(&mut postrider(&["config", "show", "--to", "pulsar://u:c4n4ry@h"])).expect(64);
    let future = ["config", "show", "--to", "null", "--start", "2999-01-01T00:00:00Z"];
    let end = End::of(&mut postrider(&future)).expect(64);
    assert!(end.stderr.contains("is in the future"), "{}", end.stderr);
}

#[test]
fn the_file_is_found_where_it_is_looked_for() {
    let folder = Folder::with(GOOD);
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(0);
    assert_eq!(end.stderr, "postrider.yaml is fine\n");
    let without = Folder::with("database: postgres://h/d\n");
    let end = End::of(&mut without.postrider(&["config", "check"])).expect(0);
    assert!(end.stderr.contains("it has no sink"), "{}", end.stderr);
    folder.write("other.yaml", "relay: { drian: 1s }\n");
    let end = End::of(&mut folder.postrider(&["config", "check", "--config", "other.yaml"])).expect(78);
    assert!(end.stderr.contains("other.yaml:1:10: unknown key `drian` in `relay`"), "{}", end.stderr);
    let end =
        End::of(folder.postrider(&["config", "check"]).env("POSTRIDER_CONFIG", "other.yaml")).expect(78);
    assert!(end.stderr.contains("did you mean `drain`?"), "{}", end.stderr);
    let end = End::of(&mut folder.postrider(&["config", "check", "--config", "none.yaml"])).expect(78);
    assert!(end.stderr.contains("none.yaml cannot be read"), "{}", end.stderr);
    let empty = Folder::new();
    let end = End::of(empty.postrider(&["config", "check"]).env("DATABASE_URL", "postgres://h/d")).expect(0);
    assert!(end.stderr.contains("no postrider.yaml here"), "{}", end.stderr);
    let end = End::of(&mut empty.postrider(&["config", "check"])).expect(78);
    assert!(end.stderr.contains("no database is given"), "{}", end.stderr);
    End::of(&mut empty.postrider(&["config", "check", "--depth", "syntax"])).expect(0);
}

#[test]
fn each_depth_looks_further() {
    let folder = Folder::with(
        "database: ${SHOP_URL}\nrelay: { name: '${file:name.txt}' }\nsinks:\n  a: { null: {}, max_in_flight: '${N}' }\n",
    );
    End::of(&mut folder.postrider(&["config", "check", "--depth", "syntax"])).expect(0);
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(78);
    for words in [
        "3 things are wrong",
        "postrider.yaml:1:11: the variable SHOP_URL is not set",
        "postrider.yaml:2:16: the file name.txt cannot be read: No such file",
        "postrider.yaml:4:33: the variable N is not set",
    ] {
        assert!(end.stderr.contains(words), "{words} in {}", end.stderr);
    }
    folder.write("name.txt", "relay one\n");
    let variables = [("SHOP_URL", "postgres://me@127.0.0.1:1/shop"), ("N", "10")];
    End::of(folder.postrider(&["config", "check"]).envs(variables)).expect(0);
    let words = ["config", "check", "--depth", "environment", "--json"];
    // Nothing is wrong with it, and later it may work.
    let end = End::of(folder.postrider(&words).envs(variables)).expect(69);
    let found = &end.json()["findings"][0];
    assert_eq!((&found["line"], &found["column"]), (&1.into(), &1.into()));
    assert!(found["message"].as_str().unwrap().starts_with("cannot connect to database shop"), "{found}");
    assert_eq!(end.stderr, "");
}

/// Tables may be captured without a relay, so it is no mistake; but whoever forgot the sinks hears of it.
#[test]
fn a_file_without_sinks_is_fine_and_that_is_said() {
    let folder = Folder::with("database: postgres://me@127.0.0.1:1/shop\n");
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(0);
    assert!(end.stderr.contains("it has no sink, so `postrider run` has nothing to carry"), "{}", end.stderr);
    folder.write("postrider.yaml", "database: postgres://me@127.0.0.1:1/shop\nsinks: { a: { null: {} } }\n");
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(0);
    assert!(end.stderr.contains("is fine") && !end.stderr.contains("no sink"), "{}", end.stderr);
}

/// Not one at a time: who mends the first does not want to hear of the second only then.
#[test]
fn every_wrong_expression_of_a_sink_is_shown() {
    let folder = Folder::with(
        "database: postgres://me@127.0.0.1:1/shop\nsinks:\n  a:\n    null: {}\n    filter: .a |\n    transform: .b ]\n    route: '{c'\n",
    );
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(78);
    for words in ["3 things are wrong", "yaml:5:13", "yaml:6:16", "yaml:7:12"] {
        assert!(end.stderr.contains(words), "{words} in {}", end.stderr);
    }
}

#[test]
fn one_file_is_one_file_however_it_is_written() {
    let folder = Folder::new();
    std::os::unix::fs::symlink(".", folder.0.join("here")).unwrap();
    let absolute = folder.0.canonicalize().unwrap().join("x").display().to_string();
    for (path, is_same) in [("x", true), ("./x", true), ("here/x", true), (&*absolute, true), ("y", false)] {
        let sinks =
            format!("  a: {{ file: {{ path: x }} }}\n  b: {{ file: {{ path: {path}, fsync: never }} }}\n");
        folder.write("postrider.yaml", format!("database: postgres://me@127.0.0.1:1/shop\nsinks:\n{sinks}"));
        let end = End::of(&mut folder.postrider(&["config", "check"]));
        assert_eq!(end.code, Some(if is_same { 78 } else { 0 }), "{path}: {}", end.stderr);
        assert_eq!(end.stderr.contains("`a` and `b` both write to the same file"), is_same, "{}", end.stderr);
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_made_is_found_by_the_environment() {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    let folder = Folder::new();
    for (path, code) in [("/proc/x", 78), ("x", 0)] {
        folder.write("postrider.yaml", format!("sinks: {{ a: {{ file: {{ path: {path} }} }} }}\n"));
        let mut check = folder.postrider(&["config", "check", "--depth", "environment"]);
        let end = End::of(check.env("DATABASE_URL", database.url())).expect(code);
        assert_eq!(
            end.stderr.contains("the sink `a` cannot be opened: /proc/x"),
            code == 78,
            "{}",
            end.stderr
        );
    }
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["postrider.yaml"], "looking leaves nothing behind");
}

#[tokio::test]
async fn the_environment_is_fine_once_the_schema_is_there() {
    let database = empty_database().await;
    let folder = Folder::with("sinks: { out: { null: {} } }\n");
    let mut check = folder.postrider(&["config", "check", "--depth", "environment"]);
    check.env("DATABASE_URL", database.url());
    let end = End::of(&mut check).expect(78);
    assert!(end.stderr.contains("no postrider schema; install it with `postrider init`"), "{}", end.stderr);
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    End::of(&mut check).expect(0);
}

#[test]
fn show_prints_what_is_in_effect_and_where_it_is_from() {
    let folder = Folder::with(&format!("{GOOD}relay:\n  drain: 3s\n"));
    let mut show = folder.postrider(&["config", "show", "--name", "by hand"]);
    let end = End::of(show.env("POSTRIDER_ALERTS_LAG", "1s")).expect(0);
    for (line, origin) in [
        ("database: \"postgres://me@127.0.0.1:1/shop\"", "file line 1"),
        ("  drain: 3s", "file line 5"),
        ("  name: \"by hand\"", "flag --name"),
        ("  lag: 1s", "environment POSTRIDER_ALERTS_LAG"),
        ("  lease: 5s", "default"),
        ("    \"null\": {}", "file line 3"),
    ] {
        let found = end.stdout.lines().find(|found| found.starts_with(line));
        let found = found.unwrap_or_else(|| panic!("{line} in {}", end.stdout));
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
    let end = End::of(&mut folder.postrider(&["config", "show", "--json"])).expect(0);
    assert_eq!(end.json()["configuration"]["relay"]["drain"], "3s");
    assert_eq!(end.json()["origins"]["relay.drain"], "file line 5");
    let words = ["config", "show", "--to", "null", "--start", "2026-01-31T12:00:00Z", "--json"];
    let end = End::of(&mut folder.postrider(&words)).expect(0);
    let sinks = &end.json()["configuration"]["sinks"];
    assert_eq!(sinks["null"]["start"], "2026-01-31T12:00:00Z");
    assert!(sinks["out"].is_null(), "{sinks}");
}

/// A default that is in effect is shown, and what a variable holds is not: it may be a secret.
#[test]
fn show_prints_the_defaults_of_references_that_are_used() {
    let folder = Folder::with(
        "database: ${SHOP_URL:-postgres://me:c4n4ry@127.0.0.1:1/shop}\nrelay:\n  name: 'relay ${A:-one} of ${B:-two}'\n",
    );
    let end = End::of(folder.postrider(&["config", "show"]).env("B", "c4n4ry")).expect(0);
    for line in [
        "database: \"postgres://me:***@127.0.0.1:1/shop\"  # file line 1, the default of SHOP_URL",
        "  name: \"relay one of ${B}\"",
    ] {
        assert!(end.stdout.lines().any(|found| found.starts_with(line)), "{line} in {}", end.stdout);
    }
    assert!(end.stdout.contains("# file line 3, the default of A, environment B"), "{}", end.stdout);
    assert!(!end.stdout.contains("c4n4ry"), "{}", end.stdout);
}

#[test]
fn show_says_where_the_variables_of_libpq_lead_to() {
    let folder = Folder::with("sinks: { out: { \"null\": {} } }\n");
    let shown = |variables: &[(&str, &str)]| {
        let mut show = folder.postrider(&["config", "show"]);
        let end = End::of(show.envs(variables.iter().copied()).env("PGPASSWORD", "c4n4ry")).expect(0);
        assert!(!end.stdout.contains("c4n4ry"), "{}", end.stdout);
        end.stdout.lines().find(|line| line.starts_with("database:")).unwrap().to_owned()
    };
    let line = shown(&[("PGHOST", "h1,h2"), ("PGPORT", "1,2"), ("PGUSER", "me"), ("PGDATABASE", "shop")]);
    assert_eq!(
        line,
        "database: \"postgres://me@h1:1,h2:2/shop\"      # environment PGHOST, PGPORT, PGDATABASE, PGUSER"
    );
    let line = shown(&[("PGHOST", "/run/sockets"), ("PGUSER", "a b")]);
    assert!(line.contains("postgres://a%20b@%2Frun%2Fsockets:5432/a%20b"), "{line}");
    // What it says can be used.
    let url = line.split('"').nth(1).unwrap().to_owned();
    End::of(&mut folder.postrider(&["config", "show", "--database", &url])).expect(0);
}

/// Who takes one of the two out does not want to hear of the rest only then.
#[test]
fn everything_unknown_beside_two_kinds_of_one_sink_is_named() {
    let folder = Folder::with(
        "database: postgres://h/d\nsinks:\n  out: { file: { path: a, bogsu: 1 }, stdout: { colour: 1 }, bogus: 1 }\n",
    );
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(78);
    for words in [
        "unknown key `bogus` in `sinks.out`",
        "unknown key `bogsu` in `sinks.out.file`",
        "unknown key `colour` in `sinks.out.stdout`",
        "is both `file` and `stdout`",
    ] {
        assert!(end.stderr.contains(words), "{words} in {}", end.stderr);
    }
}

/// A bound that nobody can read is found out by an error.
#[test]
fn how_long_a_span_may_be_is_in_the_reference() {
    let page = include_str!("../../../../docs/configuration.md");
    for (section, key, most, beyond) in [
        ("log", "lease", "1h", "3601s"),
        ("log", "patience", "1h", "3601s"),
        ("relay", "drain", "1d", "86401s"),
        ("alerts", "lag", "365d", "31536001s"),
        ("alerts", "stuck", "365d", "31536001s"),
        ("sinks.out", "retry.first", "365d", "31536001s"),
        ("sinks.out", "retry.max", "365d", "31536001s"),
    ] {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}`<br>"))).unwrap();
        assert!(row.contains(&format!("At most {most}.")) || row.contains(&format!(" to {most}.")), "{row}");
        let folder = Folder::with(GOOD);
        let refusal = format!("`{section}.{key}`");
        for (value, is_refused) in [(most, false), (beyond, true)] {
            let text = match section.split_once('.') {
                None => format!("{GOOD}{section}: {{ {key}: {value} }}\n"),
                Some((_, sink)) => {
                    let key = key.strip_prefix("retry.").unwrap();
                    GOOD.replace(
                        &format!("{sink}: {{ null: {{}} }}"),
                        &format!("{sink}: {{ null: {{}}, retry: {{ {key}: {value} }} }}"),
                    )
                }
            };
            folder.write("postrider.yaml", text);
            let end = End::of(&mut folder.postrider(&["config", "check", "--depth", "references"]));
            let said = format!("{}{}", end.stdout, end.stderr);
            let found = said
                .lines()
                .any(|line| line.contains(&refusal) && line.contains(&format!("longer than {most}")));
            assert_eq!(found, is_refused, "{key}: {value}: {said}");
        }
    }
}

#[test]
fn the_schema_is_one() {
    let schema = End::of(&mut postrider(&["config", "schema"])).expect(0).json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn fault_111_no_canary_in_any_output() {
    const CANARY: &str = "c4n4ry";
    let folder = Folder::new();
    folder.write("secret.txt", "c4n4ry\n");
    let texts = [
        // Right ones.
        "database: postgres://me:c4n4ry@127.0.0.1:1/shop\nsinks: { a: { null: {} } }\n",
        "database: postgres://me:${SECRET}@127.0.0.1:1/shop\nrelay: { name: '${SECRET}' }\n",
        "database: postgres://me:${file:secret.txt}@127.0.0.1:1/shop\nsinks: { a: { null: {}, source: '${file:secret.txt}' } }\n",
        "database: ${NONE:-postgres://me:c4n4ry@127.0.0.1:1/shop}\n",
        "database: postgres://127.0.0.1:1/shop?user=me&password=c4n4ry\n",
        // Wrong ones.
        "database: postgres://me:c4n4ry@h:port/shop\n",
        "database: c4n4ry\n",
        "database: { url: c4n4ry }\n",
        "database: postgres://me:c4n4ry@h/shop\n  relay: {\n",
        "database: \"postgres://me:c4n4ry@h/shop\n",
        "database: postgres://me:${SECRET}@h:port/shop?${SECRET}\n",
        "databse: postgres://h/d?sslpass=c4n4ry\n",
        "relay: { drain: '${SECRET}', connections: '${file:secret.txt}', name: \"${SECRET}\\n\" }\n",
        "relay: { api_token: c4n4ry, drain: soon }\n",
        "relay: { secret: c4n4ry, drain: [\n",
        "log: { hint: '${SECRET}', lease: '${file:secret.txt}' }\nhttp: { listen: '${SECRET}' }\n",
        "sinks: { a: { null: '${SECRET}' }, b: { null: {}, envelope: '${SECRET}', filter: '${SECRET} |' } }\n",
        "sinks: { a: { null: { pasword: c4n4ry } }, b: { amqp: { url: 'amqp://u:c4n4ry@h/' } } }\n",
        "logs: { level: '${SECRET}=${SECRET}=x' }\n",
    ];
    let commands: [&[&str]; 6] = [
        &["config", "check", "--depth", "syntax"],
        &["config", "check"],
        &["config", "check", "--json"],
        &["config", "check", "--depth", "environment"],
        &["config", "show"],
        &["config", "show", "--json"],
    ];
    for text in texts {
        folder.write("postrider.yaml", text);
        for words in commands {
            let mut command = folder.postrider(words);
            command.envs([("SECRET", CANARY), ("POSTRIDER_LOG", "trace")]);
            let end = End::of(&mut command);
            assert!(matches!(end.code, Some(0 | 69 | 78)), "{words:?} {text} {}", end.stderr);
            assert!(
                !(end.stdout.clone() + &end.stderr).contains(CANARY),
                "{text}: {}{}",
                end.stdout,
                end.stderr
            );
        }
    }
}

#[tokio::test]
async fn every_command_takes_the_database_of_the_file() {
    let database = empty_database().await;
    // What else is in it is no concern of theirs.
    let text = format!("database: {}\nrelay: {{ drian: 1s }}\n", database.url());
    let folder = Folder::with(&text);
    let elsewhere = "postgres://me@127.0.0.1:1/shop";
    let postrider = |words: &[&str]| {
        let mut command = folder.postrider(words);
        command.env("DATABASE_URL", elsewhere);
        command
    };
    End::of(&mut postrider(&["init"])).expect(0);
    End::of(&mut postrider(&["emit", "order.paid", "{}"])).expect(0);
    End::of(&mut postrider(&["dead", "list"])).expect(0);
    End::of(postrider(&["emit", "order.paid", "{}"]).env("POSTRIDER_CONFIG", "")).expect(0);
    End::of(&mut postrider(&["emit", "order.paid", "{}", "--config", "/dev/null"])).expect(69);
    End::of(postrider(&["emit", "order.paid", "{}"]).env("POSTRIDER_DATABASE", elsewhere)).expect(69);
    End::of(&mut postrider(&["emit", "order.paid", "{}", "--database", elsewhere])).expect(69);

    folder.write("postrider.yaml", "database: ${NOT_SET_ANYWHERE}\n");
    let end = End::of(&mut postrider(&["dead", "list"])).expect(78);
    assert!(
        end.stderr.contains("postrider.yaml:1:11") && end.stderr.contains("NOT_SET_ANYWHERE"),
        "{}",
        end.stderr
    );
}
