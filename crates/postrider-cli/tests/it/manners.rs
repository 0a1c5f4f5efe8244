//! Exit statuses, help, where words go.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use crate::support::{End, empty_database, postrider, postrider_on};
use crate::world::installed;

const COMMANDS: [&str; 17] = [
    "init",
    "plan",
    "apply",
    "recapture",
    "run",
    "sql",
    "emit",
    "tail",
    "status",
    "doctor",
    "where",
    "dead",
    "sinks",
    "rebase",
    "config",
    "completions",
    "man",
];

#[test]
fn help_and_version_go_to_standard_output() {
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let end = End::of(&mut postrider(&[command, flag])).expect(0);
            assert!(end.stdout.contains(&format!("Usage: postrider {command}")), "{}", end.stdout);
            assert_eq!(end.stderr, "");
        }
    }
    let end = End::of(&mut postrider(&["--help"])).expect(0);
    for command in COMMANDS {
        let line = end.stdout.lines().find(|line| line.trim().starts_with(command));
        assert!(line.is_some_and(|line| line.len() > 20), "{command} in {}", end.stdout);
    }
    let widest = end.stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{}", end.stdout);
    let end = End::of(&mut postrider(&["--version"])).expect(0);
    assert_eq!(end.stdout, concat!("postrider ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_usage_is_64() {
    for words in [
        &[][..],
        &["frobnicate"],
        &["init", "--frobnicate"],
        &["init", "extra"],
        &["init", "--lanes", "3"],
        &["init", "--lanes", "2048"],
        &["init", "--max-payload", "64 apples"],
        &["init", "--emit-role", ""],
        &["init", "--database"],
        &["sql", "--lanes", "many"],
        &["rebase", "--overrule-readers"],
    ] {
        let end = End::of(&mut postrider(words)).expect(64);
        assert_eq!(end.stdout, "", "{words:?}");
        assert!(!end.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn every_command_says_how_it_may_end() {
    for command in COMMANDS {
        let help = End::of(&mut postrider(&[command, "--help"])).expect(0).stdout;
        for line in [
            "Exit status:",
            "  69  unavailable: the database cannot be reached, or a sink (with run --once, or gone for good)",
            "  78  wrong configuration",
        ] {
            assert!(help.contains(line), "{line} in {help}");
        }
    }
}

#[test]
fn nobody_listening_is_69() {
    // Bound and closed again: nobody listens there.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("postgres://me@127.0.0.1:{port}/shop");
    for command in ["init", "rebase"] {
        let end = End::of(&mut postrider_on(&url, &[command])).expect(69);
        let lines: Vec<&str> = end.stderr.lines().collect();
        assert_eq!(lines[0], format!("error: cannot connect to database shop at 127.0.0.1:{port} as me"));
        assert!(lines[1].starts_with("  caused by: ") && lines[1].contains("refused"), "{lines:?}");
    }
}

/// As libpq takes them, in the URL and in the variables.
#[tokio::test]
async fn fault_13_of_several_hosts_the_one_that_answers_is_taken() {
    let database = installed().await;
    let port = database.server().port();
    let url = database.url_via(1).replace(":1/", &format!(":1,127.0.0.1:{port}/"));
    let end = End::of(&mut postrider_on(&url, &["status"])).expect(0);
    assert!(end.stdout.starts_with("no sinks"), "{}", end.stdout);
    let variables = [
        ("PGHOST", "127.0.0.1,127.0.0.1".to_owned()),
        ("PGPORT", format!("1,{port}")),
        ("PGDATABASE", database.name().to_owned()),
        ("PGUSER", "postgres".to_owned()),
        ("PGTARGETSESSIONATTRS", "read-write".to_owned()),
    ];
    End::of(postrider(&["emit", "order.paid", "{}"]).envs(variables.clone())).expect(0);

    let end =
        End::of(&mut postrider_on("postgres://me@127.0.0.1:1,127.0.0.1:2/shop", &["status"])).expect(69);
    for words in [
        "error: cannot connect to database shop at 127.0.0.1:1, 127.0.0.1:2 as me\n",
        "caused by: none of the servers is a primary that answers: 127.0.0.1:1: Connection refused",
        "; 127.0.0.1:2: Connection refused",
    ] {
        assert!(end.stderr.contains(words), "{words:?} in {}", end.stderr);
    }
    let lists = [variables.as_slice(), &[("PGPORT", "1,2,3".to_owned())]].concat();
    let end = End::of(postrider(&["status"]).envs(lists)).expect(78);
    assert!(end.stderr.contains("the lists of hosts and ports must be of the same length"), "{}", end.stderr);
    let end = End::of(&mut postrider_on("postgres://h1,h2/shop?target_session_attrs=standby", &["status"]))
        .expect(78);
    assert!(end.stderr.contains("target_session_attrs must be read-write"), "{}", end.stderr);
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_78() {
    let database = empty_database().await;
    let url = format!("{}_not", database.url());
    let end = End::of(&mut postrider_on(&url, &["init"])).expect(78);
    assert!(end.stderr.contains("does not exist"), "{}", end.stderr);
}

#[test]
fn no_address_or_a_wrong_one_is_78() {
    let end = End::of(&mut postrider(&["init"])).expect(78);
    assert!(end.stderr.contains("set DATABASE_URL"), "{}", end.stderr);
    for url in ["", "shop", "mysql://h/d", "postgres://h:port/d", "postgres://h/d?sslmod=require"] {
        End::of(&mut postrider_on(url, &["init"])).expect(78);
    }
    for (name, value) in [("PGPORT", "many"), ("PGSSLMODE", "yes"), ("POSTRIDER_LOG", "a=b=c")] {
        let end = End::of(postrider_on("postgres://127.0.0.1:1/d", &["init"]).env(name, value)).expect(78);
        assert!(end.stderr.contains(name), "{}", end.stderr);
    }
}

/// psql would go where the service file says: whoever is led elsewhere without a word writes into another database.
#[tokio::test]
async fn a_service_is_refused_with_a_word() {
    let database = empty_database().await;
    let refused = |command: &mut Command| {
        let end = End::of(command).expect(78);
        assert!(end.stderr.contains("service files are not read"), "{}", end.stderr);
    };
    refused(postrider(&["init"]).env("PGSERVICE", "shop"));
    refused(postrider(&["init"]).envs([("PGSERVICE", "shop"), ("PGHOST", "127.0.0.1"), ("PGPORT", "1")]));
    refused(postrider_on("postgres://127.0.0.1:1", &["init"]).env("PGSERVICE", "shop"));
    refused(&mut postrider_on("postgres://127.0.0.1:1/d?service=shop", &["init"]));
    // A URL that says everything leaves nothing to a service, and set to nothing is not set.
    End::of(postrider_on(&database.url(), &["init"]).env("PGSERVICE", "shop")).expect(0);
    let end = End::of(postrider(&["init"]).env("PGSERVICE", "")).expect(78);
    assert!(end.stderr.contains("no database is given"), "{}", end.stderr);
}

#[tokio::test]
async fn a_parameter_without_effect_is_named() {
    let database = empty_database().await;
    let url = format!("{}?channel_binding=prefer&sslmode=disable", database.url());
    let end = End::of(&mut postrider_on(&url, &["init"])).expect(0);
    assert!(end.stderr.starts_with("note: the connection parameter channel_binding"), "{}", end.stderr);
}

/// Brokers bring their libraries along: whoever wants one asks for it.
#[test]
fn the_default_build_has_the_sinks_that_need_no_library() {
    let manifest = include_str!("../../Cargo.toml");
    let default = manifest.lines().find_map(|line| line.strip_prefix("default = ")).unwrap();
    let mut features: Vec<String> = serde_json::from_str(default).unwrap();
    features.sort();
    assert_eq!(features, ["file", "null", "stdout"]);
}
