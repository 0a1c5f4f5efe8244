//! From a text to settings, and what is said about texts that are wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_relay::settings::RelaySettings;
use sqlx::postgres::PgConnectOptions;

use super::shape::{NAME, shape};
use super::*;

mod tables;

const URL: (&str, &str) = ("DATABASE_URL", "postgres://me@h/shop");

fn examined<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Examined {
    with(text, &Overrides::default(), variables)
}

fn with<const N: usize>(text: &str, overrides: &Overrides, variables: [(&str, &str); N]) -> Examined {
    let environment = Environment::from(variables);
    examine_text(text.to_owned(), Some(Path::new("p.yaml")), overrides, &environment, Depth::References)
}

#[track_caller]
fn good<const N: usize>(text: &str, variables: [(&str, &str); N]) -> Config {
    let examined = examined(text, variables);
    assert!(examined.report.is_empty(), "{}", examined.report);
    examined.config.unwrap()
}

#[track_caller]
fn bad<const N: usize>(text: &str, variables: [(&str, &str); N], words: &[&str]) {
    let report = examined(text, variables).report.to_string();
    for word in words {
        assert!(report.contains(word), "{word} in:\n{report}");
    }
}

#[test]
fn an_empty_file_and_no_file_are_the_defaults() {
    let wanted = RelaySettings::new(PgConnectOptions::new_without_pgpass().into(), Vec::new());
    for text in ["", "# nothing\n", "log:\nsinks:\n", "{}"] {
        let config = good(text, [URL]);
        assert_eq!(config.relay.log, wanted.log);
        assert_eq!(config.relay.name, wanted.name);
        assert_eq!(config.relay.memory_limit, wanted.memory_limit);
        assert_eq!(config.relay.drain, wanted.drain);
        assert_eq!(config.relay.connections, wanted.connections);
        assert!(config.relay.sinks.is_empty());
        assert_eq!(config.http.map(|http| http.listen.to_string()), Some("127.0.0.1:9185".to_owned()));
        assert_eq!(config.alerts, Alerts { lag: Duration::from_secs(5), stuck: Duration::from_mins(5) });
        assert_eq!(config.logs, LogSettings { format: Format::Text, level: "info".to_owned() });
    }
}

#[test]
fn every_value_arrives() {
    let text = r#"
database: postgres://me@db.example:5433/shop
log: { retention: 14d, max_slot_size: 1GiB, max_log_size: 20GB, lease: 10s, idle: { min: 1ms, max: 5s }, hint: off, sweep: 30s }
relay: { name: a relay, memory_limit: 300MB, drain: 20s, connections: 8 }
alerts: { lag: 1s, stuck: 1m }
sinks:
  some_sink-1:
    null: {}
    start: earliest
    ordering: relaxed
    envelope: plain
    source: shop
    retry: { max_attempts: 3, first: 2s, factor: 1.5, max: 1h }
    max_in_flight: 100
    max_batch: 50
  other:
    null:
    max_in_flight: 7
http: { listen: "[::1]:80" }
logs: { format: json, level: debug }
"#;
    let config = good(text, []);
    let relay = &config.relay;
    assert_eq!(relay.database.last().get_host(), "db.example");
    assert_eq!(relay.name, "a relay");
    assert_eq!(relay.log.retention, Duration::from_hours(14 * 24));
    assert_eq!(relay.log.max_slot_size, Some(1 << 30));
    assert_eq!(relay.log.max_log_size, Some(20_000_000_000));
    assert_eq!(relay.log.lease, Duration::from_secs(10));
    assert_eq!(relay.log.idle, (Duration::from_millis(1), Duration::from_secs(5)));
    assert_eq!(relay.log.hint, postrider::log::Hint::Off);
    assert_eq!(relay.log.sweep, Duration::from_secs(30));
    assert_eq!((relay.memory_limit, relay.connections), (300_000_000, 8));
    assert_eq!(relay.drain, Duration::from_secs(20));
    let [other, sink] = relay.sinks.as_slice() else { panic!("two sinks") };
    assert_eq!((sink.name.as_str(), sink.target.kind()), ("some_sink-1", "null"));
    assert_eq!(sink.start, postrider::log::Start::Earliest);
    assert_eq!(sink.ordering, postrider_relay::Ordering::Relaxed);
    assert_eq!(sink.envelope, postrider_relay::EnvelopeKind::Plain);
    assert_eq!(sink.source, "shop");
    assert_eq!(sink.retry.max_attempts, 3);
    assert_eq!(sink.retry.first, Duration::from_secs(2));
    assert!((sink.retry.factor - 1.5).abs() < f64::EPSILON);
    assert_eq!(sink.retry.max, Duration::from_hours(1));
    assert_eq!((sink.max_in_flight, sink.max_batch), (100, 50));
    assert_eq!((other.max_in_flight, other.max_batch), (7, 7), "a batch fits by itself");
    assert_eq!(config.http.unwrap().listen.to_string(), "[::1]:80");
    assert_eq!(config.alerts.lag, Duration::from_secs(1));
    assert_eq!(config.logs, LogSettings { format: Format::Json, level: "debug".to_owned() });
}

#[test]
fn a_flag_wins_over_a_variable_that_over_the_file_that_over_the_ambient() {
    let text = "database: postgres://h/file\nrelay: { drain: 1s, name: file }\n";
    let variables = [
        URL,
        ("POSTRIDER_RELAY_DRAIN", "2s"),
        ("POSTRIDER_HTTP_LISTEN", "off"),
        ("POSTRIDER_LOG_IDLE_MIN", "9ms"),
        ("POSTRIDER_RELAY_NAME", ""),
    ];
    let config = good(text, variables);
    assert_eq!(config.relay.database.last().get_database(), Some("file"));
    assert_eq!(config.relay.drain, Duration::from_secs(2));
    assert_eq!(config.relay.log.idle.0, Duration::from_millis(9));
    assert_eq!(config.relay.name, "file", "an empty variable is none");
    assert!(config.http.is_none());
    let overrides = Overrides {
        database: Some("postgres://h/flag".to_owned()),
        drain: Some("3s".to_owned()),
        ..Overrides::default()
    };
    let config = with(text, &overrides, variables).config.unwrap();
    assert_eq!(config.relay.database.last().get_database(), Some("flag"));
    assert_eq!(config.relay.drain, Duration::from_secs(3));
    let config = good(text, [URL, ("POSTRIDER_DATABASE", "postgres://h/ours")]);
    assert_eq!(config.relay.database.last().get_database(), Some("ours"));
    // A variable that the file wants and nobody needs is not asked for.
    let config = with("database: ${NO}", &overrides, []).config.unwrap();
    assert_eq!(config.relay.database.last().get_database(), Some("flag"));
}

#[test]
fn variables_fill_in_texts_numbers_and_words_and_nothing_else() {
    let text = "sinks:\n  a:\n    null: {}\n    max_in_flight: ${N}\n    ordering: ${O}\nrelay:\n  name: x ${S} ${MORE:-y}\n";
    let config = good(text, [URL, ("N", "12"), ("O", "relaxed"), ("S", "{a: b}, [d]: '")]);
    let sink = &config.relay.sinks[0];
    assert_eq!((sink.max_in_flight, sink.ordering), (12, postrider_relay::Ordering::Relaxed));
    assert_eq!(config.relay.name, "x {a: b}, [d]: ' y");
    bad(text, [URL, ("N", "12"), ("O", "relaxed"), ("S", "a\nb")], &["line breaks"]);
    let text = "relay: ${R}\n";
    bad(text, [URL, ("R", "{ drain: 5s }")], &["takes keys of its own"]);
    let text = "sinks:\n  a: { null: {}, filter: \"${F:-}\", source: '${S}' }\n";
    let sink = good(text, [URL, ("S", "null")]).relay.sinks.remove(0);
    assert_eq!((sink.filter, sink.source.as_str()), (None, "null"));
}

#[test]
fn aliases_are_what_they_point_to() {
    let text = "sinks:\n  a: { null: {}, retry: &r { max_attempts: 3 } }\n  b: { null: {}, retry: *r }\n";
    let config = good(text, [URL]);
    assert!(config.relay.sinks.iter().all(|sink| sink.retry.max_attempts == 3));
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n\
                c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n\
                e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]\n";
    bad(bomb, [URL], &["more than 50000 values"]);
}

#[test]
fn everything_is_said_at_once() {
    let text = "log: { retentoin: 7d, lease: soon }\nrelay: { connections: -1 }\nsinks:\n  A: { nul: {} }\n  b: { null: {}, odering: strict }\n";
    let report = examined(text, [URL]).report;
    let findings = report.json();
    let lines: Vec<_> =
        findings.as_array().unwrap().iter().map(|found| found["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [1, 1, 2, 4, 4, 5], "{report}");
    bad(
        text,
        [URL],
        &["did you mean `retention`?", "did you mean `null`?", "did you mean `ordering`?", "6 things"],
    );
}

#[cfg(all(feature = "kafka", feature = "nats", feature = "redis"))]
#[test]
fn as_many_are_in_flight_as_the_sink_likes() {
    let text = "sinks:\n  a: { kafka: { url: kafka://h:9092 } }\n  b: { kafka: { url: kafka://h:9092 }, max_in_flight: 100 }\n  c: { null: {} }\n  d: { nats: { url: nats://h } }\n  e: { redis: { url: redis://h:1 } }\n";
    let relay = good(text, [URL]).relay;
    let bounds: Vec<_> = relay.sinks.iter().map(|sink| (sink.max_in_flight, sink.max_batch)).collect();
    assert_eq!(bounds, [(5000, 2500), (100, 100), (1000, 500), (4000, 2000), (2000, 1000)]);
}

/// A file that is renamed after every batch would be one file per batch.
#[cfg(feature = "file")]
#[test]
fn a_file_is_not_renamed_at_nothing() {
    bad(
        "sinks: { a: { file: { path: /tmp/x, rotate: 0B } } }",
        [URL],
        &["`sinks.a.file.rotate`: it must be more than 0B"],
    );
}

#[test]
fn a_wrong_variable_or_flag_is_named() {
    bad(
        "",
        [URL, ("POSTRIDER_RELAY_DRAIN", "soon")],
        &["the variable POSTRIDER_RELAY_DRAIN: ", "is no duration"],
    );
    bad("", [URL, ("POSTRIDER_RELAY_DRIAN", "1s")], &["did you mean POSTRIDER_RELAY_DRAIN?"]);
    good("", [URL, ("POSTRIDER_PORT", "tcp://10.0.0.1:80"), ("POSTRIDER_RELAY_SERVICE_HOST", "10.0.0.1")]);
    bad("", [("DATABASE_URL", "mysql://h")], &["the variable DATABASE_URL: ", "postgres://"]);
}

#[test]
fn to_makes_a_sink_and_the_only_one() {
    let text = "sinks: { a: { null: {} } }";
    let to = |to: &str| Overrides { to: Some(to.to_owned()), ..Overrides::default() };
    let config = with(text, &to("null"), [URL]).config.unwrap();
    let names: Vec<&str> = config.relay.sinks.iter().map(|sink| sink.name.as_str()).collect();
    assert_eq!(names, ["null"]);
    let overrides = Overrides { start: Some("earliest".to_owned()), ..to("null") };
    let config = with("", &overrides, [URL]).config.unwrap();
    assert_eq!(config.relay.sinks[0].start, postrider::log::Start::Earliest);
    #[cfg(feature = "file")]
    {
        let config = with("", &to("file:/tmp/a:b.ndjson"), [URL]).config.unwrap();
        let target = serde_json::to_value(&config.relay.sinks[0].target).unwrap();
        assert_eq!(target["file"]["path"], "/tmp/a:b.ndjson");
    }
    for (word, said) in [
        ("nul", "did you mean `null`?"),
        ("pulsar://u:canary@h", "there is no sink `pulsar`; this build has"),
        ("null:x", "write one of"),
        ("", "there is no sink"),
    ] {
        let report = with("", &to(word), [URL]).report.to_string();
        assert!(report.contains(said) && !report.contains("canary"), "{word}: {report}");
    }
}

#[test]
fn what_comes_from_elsewhere_is_not_repeated() {
    for text in [
        "relay: { drain: '${C}' }",
        "relay: { connections: '${C}' }",
        "sinks: { a: { null: {}, ordering: '${C}' } }",
        "sinks: { a: { null: {}, retry: { factor: '${C}' } } }",
        "sinks: { a: { null: '${C}' } }",
        "http: { listen: '${C}' }",
        "logs: { level: 'a=b=${C}' }",
        "database: '${C}'",
        "database: 'postgres://h/d?${C}=1'",
        "database: postgres://me:canary@h:port/d",
        "databse: canary",
        "database: me:canary@h",
        "relay: { pasword: canary }",
        "relay: { password: canary",
        "database: [canary]",
        "relay: { name: \"${C}\\n\" }",
    ] {
        let environment = [URL, ("C", "canary")];
        let report = examined(text, environment).report;
        assert!(!report.is_empty(), "{text}");
        let said = format!("{report}{report:?}{}", report.json());
        assert!(!said.contains("canary"), "{text}: {said}");
    }
}

#[test]
fn show_says_where_each_value_is_from_and_can_be_read_again() {
    let text = "database: postgres://me:canary@h/${DB}\nrelay:\n  name: '${NAME:-a b}'\n  drain: ${D}\nsinks:\n  a:\n    null: {}\n    source: 'a$${b'\n    max_in_flight: 9\n";
    let variables = [("D", "3000ms"), ("DB", "shop"), ("POSTRIDER_ALERTS_LAG", "1s")];
    let shown = examined(text, variables).show();
    let yaml = shown.yaml();
    let line = |key: &str| yaml.lines().find(|line| line.trim().starts_with(key)).unwrap().to_owned();
    assert!(
        line("database:").contains("***") && line("database:").ends_with("# file line 1, environment DB"),
        "{yaml}"
    );
    assert!(
        line("drain:").contains("drain: 3s") && line("drain:").ends_with("# file line 4, environment D"),
        "{yaml}"
    );
    assert!(line("lag:").ends_with("# environment POSTRIDER_ALERTS_LAG"), "{yaml}");
    assert!(line("retention:").ends_with("# default"), "{yaml}");
    assert!(line("max_batch:").contains("max_batch: 9"), "{yaml}");
    assert!(!yaml.contains("canary"), "{yaml}");
    let again = examined(&yaml, [("D", ""), ("DB", "shop")]);
    assert!(again.report.is_empty(), "{}\n{yaml}", again.report);
    assert_eq!(again.file.sinks, examined(text, variables).file.sinks);
    let json = shown.json();
    assert_eq!(json["configuration"]["relay"]["drain"], "3s");
    assert_eq!(json["origins"]["relay.drain"], "file line 4, environment D");
    assert_eq!(json["configuration"]["sinks"]["a"]["null"], serde_json::json!({}));
}

#[test]
fn no_text_makes_it_panic() {
    let reference = super::document::reference();
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..2000 {
        let mut text: Vec<char> = reference.chars().collect();
        for _ in 0..3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = usize::try_from(random >> 8).unwrap() % text.len();
            match random % 4 {
                0 => drop(text.drain(at..(at + 7).min(text.len()))),
                1 => text.insert(at, ['{', '"', '$', '\n', ':', '\t', 'é', '*'][(random >> 3) as usize % 8]),
                // Never to so little that nothing is left for the next.
                2 => text.truncate(at.max(8)),
                _ => text[at] = '-',
            }
        }
        let text: String = text.into_iter().collect();
        let _ = examined(&text, [URL]).report.to_string();
    }
}

/// What needs every kind of sink to be there.
#[cfg(all(
    feature = "file",
    feature = "jobs",
    feature = "kafka",
    feature = "nats",
    feature = "null",
    feature = "rabbitmq",
    feature = "redis",
    feature = "stdout"
))]
mod documents {
    use super::*;
    use crate::config::document;
    use crate::config::raw::{Feed, File};

    #[test]
    fn the_documentation_is_what_the_schema_says() {
        document::assert_current("configuration.md", &document::markdown());
    }

    #[test]
    fn every_sinks_page_has_its_keys() {
        let pages: Vec<(String, String)> =
            sinks::KINDS.iter().filter_map(|kind| document::page(kind)).collect();
        assert_eq!(pages.len(), 6, "all but null and stdout");
        for (name, page) in pages {
            document::assert_current(&name, &page);
        }
    }

    #[test]
    fn the_reference_file_has_every_key_with_its_default() {
        document::assert_current("postrider.reference.yaml", &document::reference());
        let text = std::fs::read_to_string(document::path("postrider.reference.yaml")).unwrap();
        let examined = examined(&text, [URL]);
        assert!(examined.report.is_empty(), "{}", examined.report);
        let file = &examined.file;
        let sinks = &file.sinks;
        let wanted = File::default();
        assert_eq!(
            (&file.log, &file.relay, &file.alerts, &file.http, &file.logs),
            (&wanted.log, &wanted.relay, &wanted.alerts, &wanted.http, &wanted.logs)
        );
        for sink in sinks.values() {
            let in_flight = sink.target.usual_in_flight();
            let usual = Feed { max_in_flight: in_flight, max_batch: in_flight / 2, ..Feed::default() };
            assert_eq!(sink.feed, usual);
        }
        shape().visit(&mut Vec::new(), &mut |path, _| {
            let is_there = match path.split_first() {
                // What is under a name of the user's choice is in the page, not in the file.
                Some((&"sinks", [_, rest @ ..])) if !rest.is_empty() => {
                    rest.contains(&NAME)
                        || sinks.keys().any(|name| {
                            let path: Vec<&str> =
                                ["sinks", name].into_iter().chain(rest.iter().copied()).collect();
                            examined.tree.find(&path).is_some()
                        })
                }
                Some((section, [_, rest @ ..]))
                    if !rest.is_empty() && document::EXAMPLES.iter().any(|(known, _)| known == section) =>
                {
                    let names = document::EXAMPLES.iter().filter(|(known, _)| known == section);
                    let mut paths = names.map(|(section, name)| [&[*section, *name], rest].concat());
                    rest.contains(&NAME) || paths.any(|path| examined.tree.find(&path).is_some())
                }
                _ => path.contains(&NAME) || examined.tree.find(path).is_some(),
            };
            assert!(is_there, "{} does not occur", path.join("."));
        });
        let config = examined.config.unwrap();
        let wanted = RelaySettings::new(PgConnectOptions::new_without_pgpass().into(), Vec::new());
        assert_eq!(config.relay.log, wanted.log);
        for sink in &config.relay.sinks {
            let wanted = postrider_relay::SinkSettings::new(&sink.name, sink.target.clone());
            assert_eq!(format!("{sink:?}"), format!("{wanted:?}"));
        }
        let kinds: BTreeMap<&str, usize> =
            config.relay.sinks.iter().map(|sink| (sink.target.kind(), 1)).collect();
        assert_eq!(kinds.len(), crate::config::sinks::compiled().len());
    }

    #[test]
    fn the_published_schema_has_descriptions_defaults_and_room_for_variables() {
        let schema = crate::config::schema();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        let lease = &schema["$defs"]["Log"]["properties"]["lease"];
        assert_eq!(lease["default"], "5s");
        assert!(lease["description"].as_str().unwrap().contains("loses its lanes"));
        assert_eq!(lease["anyOf"][1]["pattern"], r"\$\{.+\}");
        assert_eq!(schema["$defs"]["Sink"]["additionalProperties"], false);
        assert!(schema["properties"]["database"]["anyOf"].is_null(), "a text may be a reference anyway");
    }
}
