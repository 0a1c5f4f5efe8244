//! A table of files that are wrong: each is refused with the place and the words that help.

use super::Folder;
use crate::support::End;

/// What a file is, where it is wrong, and what has to be said.
struct Broken {
    text: &'static str,
    line: usize,
    column: usize,
    words: &'static [&'static str],
}

const fn broken(text: &'static str, line: usize, column: usize, words: &'static [&'static str]) -> Broken {
    Broken { text, line, column, words }
}

const TABLE: &[Broken] = &[
    // No YAML.
    broken("relay: { drain: 5s\n", 1, 8, &["this is no YAML", "unclosed bracket"]),
    broken("relay: drain: 5s\n", 1, 13, &["this is no YAML", "mapping values are not allowed"]),
    broken("log:\n  lease: @5s\n", 2, 10, &["this is no YAML", "unexpected character"]),
    broken("log:\n  lease: 5s\n sweep: 1m\n", 3, 2, &["this is no YAML"]),
    broken("log:\n  lease: *fast\n", 2, 10, &["unknown anchor"]),
    broken("log:\n  lease: !!int 5\n", 2, 16, &["tags", "remove the tag"]),
    broken("relay: {}\n---\nlog: {}\n", 2, 1, &["a second document begins here"]),
    broken("? [a]\n: b\n", 1, 3, &["a key must be a word"]),
    // Not what the file may hold.
    broken("- relay\n", 1, 1, &["takes keys of its own"]),
    broken("just words\n", 1, 1, &["takes keys of its own"]),
    broken("relay:\n  drain: 5s\n  drain: 6s\n", 3, 3, &["`drain` is given twice; the first is on line 2"]),
    broken("log: {}\nrelay: {}\nlog: {}\n", 3, 1, &["`log` is given twice", "line 1"]),
    broken("relai: {}\n", 1, 1, &["unknown key `relai`", "did you mean `relay`?"]),
    broken("archive: {}\n", 1, 1, &["unknown key `archive`", "possible here: database, log"]),
    broken(
        "tables:\n  public.a: { entity: a, omits: [x] }\n",
        2,
        26,
        &["in `tables.public.a`", "did you mean `omit`?"],
    ),
    broken("tables:\n  public.a: { entity: a, on_failure: recrod }\n", 2, 38, &["did you mean `record`?"]),
    broken(
        "log:\n  retentoin: 7d\n",
        2,
        3,
        &["unknown key `retentoin` in `log`", "did you mean `retention`?"],
    ),
    broken("relay: { lease: 5s }\n", 1, 10, &["unknown key `lease` in `relay`", "`lease` is a key of `log`"]),
    broken("log:\n  idle: { Min: 5ms }\n", 2, 11, &["did you mean `min`?"]),
    broken("log: 7d\n", 1, 6, &["`log`: takes keys of its own (retention,"]),
    broken("log: [a]\n", 1, 1, &["`log`: takes keys of its own"]),
    // Values of the wrong kind.
    broken("log:\n  lease: 5\n", 2, 10, &["`log.lease`: \"5\" is no duration", "such as 5s"]),
    broken("log:\n  lease: five seconds\n", 2, 10, &["is no duration"]),
    broken("log:\n  lease:\n", 2, 3, &["`log.lease`: there is no value"]),
    broken("log:\n  lease: { s: 5 }\n", 2, 3, &["`log.lease`", "takes a single value"]),
    broken("log:\n  lease: [5s]\n", 2, 3, &["takes a single value, not a list"]),
    broken("relay: { memory_limit: 500 MegaBytes }\n", 1, 24, &["is no size", "500MB"]),
    broken("relay: { connections: many }\n", 1, 23, &["\"many\" is no whole number from 0 to 4294967295"]),
    broken("relay: { connections: 4.5 }\n", 1, 23, &["is no whole number"]),
    broken("relay: { connections: 99999999999 }\n", 1, 23, &["is no whole number"]),
    broken(
        "log: { hint: atuo }\n",
        1,
        14,
        &["`atuo` is not one of auto, force, off", "did you mean `auto`?"],
    ),
    broken("logs: { format: xml }\n", 1, 17, &["`xml` is not one of text, json"]),
    broken("logs: { level: \"a=b=c\" }\n", 1, 16, &["`logs.level` must be a filter"]),
    broken("logs: { level: inof }\n", 1, 16, &["`logs.level` must be a filter"]),
    broken("sinks: { a: { file: { path: \"\" } } }\n", 1, 29, &["`sinks.a.file.path` is empty"]),
    broken("http: { listen: localhost }\n", 1, 17, &["is neither an address with a port"]),
    broken("http: { listen: 127.0.0.1:99999 }\n", 1, 17, &["is neither an address with a port"]),
    broken("database: mysql://h/d\n", 1, 11, &["must begin with postgres://"]),
    broken("database: postgres://h/d?sslmod=require\n", 1, 11, &["unknown parameter sslmod"]),
    // Sinks.
    broken("sinks: out\n", 1, 1, &["takes a name for each sink"]),
    broken("sinks:\n  Out: { null: {} }\n", 2, 3, &["`Out` is no name for a sink", "a-z, 0-9, _ and -"]),
    broken("sinks:\n  out: null\n", 2, 3, &["the sink `out` does not say where it goes"]),
    broken("sinks:\n  out: { start: now }\n", 2, 3, &["does not say where it goes", "`null: {…}`"]),
    broken("sinks:\n  out: [null]\n", 2, 3, &["takes keys of its own"]),
    broken(
        "sinks:\n  out: { nul: {} }\n",
        2,
        10,
        &["`nul` is neither a kind of sink", "did you mean `null`?"],
    ),
    broken(
        "sinks:\n  out:\n    null: {}\n    odering: strict\n",
        4,
        5,
        &["unknown key `odering` in `sinks.out`", "did you mean `ordering`?"],
    ),
    broken("sinks:\n  out: { null: { size: 5 } }\n", 2, 18, &["unknown key `size` in `sinks.out.null`"]),
    broken("sinks:\n  out: { null: 5 }\n", 2, 16, &["`sinks.out.null`: takes keys of its own"]),
    broken("sinks:\n  out: { null: {}, ordering: loose }\n", 2, 30, &["not one of strict, relaxed"]),
    broken("sinks:\n  out: { null: {}, start: yesterday }\n", 2, 27, &["neither now, earliest nor a time"]),
    broken(
        "sinks:\n  out: { null: {}, start: 2999-01-01T00:00:00Z }\n",
        2,
        27,
        &["`sinks.out.start`", "is in the future", "write now, or add the sink when that time has come"],
    ),
    broken("sinks:\n  out: { null: {}, retry: { factor: fast } }\n", 2, 37, &["\"fast\" is no number"]),
    broken("sinks:\n  out: { file: {} }\n", 2, 10, &["the key `path` is missing in `sinks.out.file`"]),
    broken("sinks:\n  out: { file: { path: a, fsync: bacth } }\n", 2, 34, &["did you mean `batch`?"]),
    broken("sinks:\n  out: { file: { path: no/such/a } }\n", 2, 18, &["the folder no/such does not exist"]),
    broken("sinks:\n  out: { file: { path: a, rotate: 1 MegaByte } }\n", 2, 35, &["is no size"]),
    broken("sinks:\n  out: { file: { path: a, rotate: 1MiB, keep: 0 } }\n", 2, 47, &["nonzero"]),
    broken("sinks:\n  out: { file: { path: a }, stdout: {} }\n", 2, 29, &["is both `file` and `stdout`"]),
    broken("sinks:\n  a: { stdout: {} }\n  b: { stdout: {} }\n", 3, 8, &["both write to the same stdout"]),
    broken("sinks:\n  a: { null: {}, filter: '.type |' }\n", 2, 26, &["`sinks.a.filter`: "]),
    broken("sinks:\n  a: { null: {}, transform: 'nosuch' }\n", 2, 29, &["`sinks.a.transform`: "]),
    broken("sinks:\n  a: { null: {}, route: '{nosuch}' }\n", 2, 25, &["`sinks.a.route`: "]),
    // What does not fit together.
    broken("log:\n  idle: { min: 5s, max: 1s }\n", 2, 16, &["`log.idle.min` (5s) must not be longer"]),
    broken("log:\n  idle: { min: 0ms }\n", 2, 16, &["`log.idle.min` must be more than 0ms"]),
    broken("log:\n  lease: 1s\n", 2, 10, &["`log.idle.max` (2s) must not be longer than `log.lease` (1s)"]),
    broken("log:\n  lease: 2h\n", 2, 10, &["`log.lease` (2h) must not be longer than 1h"]),
    broken("log:\n  patience: 1w\n", 2, 13, &["`log.patience` (7d) must not be longer than 1h"]),
    broken("relay: { drain: 9999999w }\n", 1, 17, &["`relay.drain`", "must not be longer than 1d"]),
    broken("alerts: { stuck: 9999999w }\n", 1, 18, &["`alerts.stuck`", "must not be longer than 365d"]),
    broken(
        "sinks: { a: { null: {}, retry: { max: 99999999w } } }\n",
        1,
        39,
        &["`sinks.a.retry.max`", "must not be longer than 365d"],
    ),
    broken("log: { lease: 10ms, idle: { max: 10ms } }\n", 1, 15, &["must be at least 500ms"]),
    broken("log: { retention: 1m }\n", 1, 19, &["at least seven times `log.sweep` (1m)"]),
    broken("relay: { memory_limit: 1MB }\n", 1, 24, &["a relay needs at least 16MB"]),
    broken("relay: { connections: 0 }\n", 1, 23, &["take 1 to 1000"]),
    broken("relay: { name: \"\" }\n", 1, 16, &["`relay.name` must be 1 to 63 characters"]),
    broken(
        "alerts: { lag: 10m }\n",
        1,
        16,
        &["`alerts.stuck` (5m) must not be shorter than `alerts.lag` (10m)"],
    ),
    broken("sinks:\n  out: { null: {}, max_in_flight: 0 }\n", 2, 35, &["`max_in_flight` must be at least 1"]),
    broken(
        "sinks:\n  out: { null: {}, max_batch: 2000 }\n",
        2,
        31,
        &["`max_batch` (2000) must not be more than `max_in_flight` (1000)"],
    ),
    broken("sinks:\n  out: { null: {}, retry: { factor: 0.5 } }\n", 2, 37, &["`retry.factor` is 0.5"]),
    broken("sinks:\n  out: { null: {}, retry: { factor: NaN } }\n", 2, 37, &["`retry.factor` is NaN"]),
    broken(
        "sinks:\n  out: { null: {}, retry: { first: 1h } }\n",
        2,
        36,
        &["must not be longer than `retry.max`"],
    ),
    broken("sinks:\n  out: { null: {}, retry: { max_attempts: 0 } }\n", 2, 43, &["must be at least 1"]),
    broken(
        "sinks:\n  out: { null: {}, source: '' }\n",
        2,
        28,
        &["`sinks.out.source`: \"\" is no URI reference"],
    ),
    // Variables.
    broken(
        "relay:\n  name: ${NOT_SET_ANYWHERE}\n",
        2,
        9,
        &["the variable NOT_SET_ANYWHERE is not set", ":-default"],
    ),
    broken("relay:\n  name: ${NOT_SET:?ask the owner}\n", 2, 9, &["NOT_SET is not set: ask the owner"]),
    broken("relay:\n  name: ${NOT_SET\n", 2, 9, &["is not closed by `}`", "$$ is a dollar"]),
    broken("relay:\n  name: ${NOT SET}\n", 2, 9, &["only `:-` or `:?`"]),
    broken("relay:\n  name: ${file:no/such/file}\n", 2, 9, &["no/such/file cannot be read: No such file"]),
    broken(
        "relay:\n  drain: ${NOT_SET:-soon}\n",
        2,
        10,
        &["\"***\" is no duration", "from the default of NOT_SET"],
    ),
];

#[test]
fn fault_118_a_broken_file_is_refused_with_its_line() {
    let folder = Folder::new();
    let mut wrong = Vec::new();
    for Broken { text, line, column, words } in TABLE {
        folder.write("postrider.yaml", text);
        let mut check = folder.postrider(&["config", "check"]);
        let end = End::of(check.env("DATABASE_URL", "postgres://h/d")).expect(78);
        let place = format!("error: postrider.yaml:{line}:{column}: ");
        let excerpt = format!("\n  {line} | ");
        let is_said = end.stderr.starts_with(&place)
            && end.stderr.contains(&excerpt)
            && words.iter().all(|words| end.stderr.contains(words));
        if !is_said || !end.stdout.is_empty() {
            wrong.push(format!("{text}wanted {place}{words:?}\n{}", end.stderr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(TABLE.len() >= 60);
}

#[test]
fn fault_118_a_file_that_is_no_text_is_refused_with_its_line() {
    let folder = Folder::new();
    folder.write("postrider.yaml", b"log: {}\nrelay: { name: \xff }\n");
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(78);
    assert!(end.stderr.contains("line 2 is not valid UTF-8"), "{}", end.stderr);
    folder.write("postrider.yaml", vec![b' '; 5 << 20]);
    let end = End::of(&mut folder.postrider(&["config", "check"])).expect(78);
    assert!(end.stderr.contains("larger than"), "{}", end.stderr);
}
