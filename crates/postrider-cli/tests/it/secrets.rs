//! A password that the user gave us is never printed, whatever else is wrong.

use std::process::Command;

use crate::config::Folder;
use crate::support::{End, empty_database, postrider, postrider_on};

const CANARY: &str = "c4n4ry";

/// Runs it as loudly as possible and fails if the canary sings.
#[track_caller]
fn assert_silent(command: &mut Command, code: i32) {
    let end = End::of(command.env("POSTRIDER_LOG", "trace")).expect(code);
    let said = end.stdout + &end.stderr;
    assert!(!said.is_empty());
    assert!(!said.contains(CANARY), "{said}");
}

#[test]
fn in_urls_that_cannot_be_read() {
    for url in [
        "postgres://me:c4n4ry@host:port/shop",
        "postgres://me:c4n4ry/x@host/shop",
        "postgres://me:12?c4n4ry@host/shop",
        "postgres://me:12#c4n4ry@host/shop",
        "postgres://me:c4n4ry@127.0.0.1:1/shop?pasword=c4n4ry",
        "postgres://me:c4n4ry@127.0.0.1:1/shop?sslmode=nonsense",
        "mysql://me:c4n4ry@127.0.0.1:1/shop",
        "host=127.0.0.1 password=c4n4ry",
        "c4n4ry",
    ] {
        assert_silent(&mut postrider_on(url, &["init"]), 78);
        assert_silent(&mut postrider(&["init", "--database", url]), 78);
    }
}

#[test]
fn in_connections_that_are_refused() {
    for url in [
        "postgres://me:c4n4ry@127.0.0.1:1/shop",
        "postgres://127.0.0.1:1/shop?user=me&password=c4n4ry",
        "postgres://me:c4n4ry@127.0.0.1:1/shop?connect_timeout=3",
    ] {
        assert_silent(&mut postrider_on(url, &["init"]), 69);
        assert_silent(&mut postrider(&["rebase", "--database", url]), 69);
    }
    assert_silent(
        postrider(&["init"]).envs([("PGHOST", "127.0.0.1"), ("PGPORT", "1"), ("PGPASSWORD", CANARY)]),
        69,
    );
}

#[test]
fn in_words_that_stand_in_the_wrong_place() {
    let url = "postgres://me:c4n4ry@127.0.0.1:1/shop";
    for words in [
        &["init", url][..],
        &[url],
        &["init", "--lanes", url],
        &[
            "init",
            "--emit-role",
            "postgres://me:c4n4ry@127.0.0.1:1/a-name-that-is-too-long-for-a-role-of-postgresql",
        ],
        &["sql", "host=127.0.0.1 password=c4n4ry"],
    ] {
        assert_silent(&mut postrider(words), 64);
    }
}

#[test]
fn in_help() {
    assert_silent(&mut postrider_on("postgres://me:c4n4ry@h/shop", &["init", "--help"]), 0);
}

#[tokio::test]
async fn in_connections_that_work() {
    let database = empty_database().await;
    let url = database.url().replace("postgres@", "postgres:c4n4ry@");
    assert_silent(&mut postrider_on(&url, &["init"]), 0);
}

#[test]
fn in_addresses_of_brokers() {
    for place in ["redis//me:c4n4ry@127.0.0.1", "redis:me:c4n4ry@127.0.0.1", "rabbit://me:c4n4ry@127.0.0.1"] {
        assert_silent(&mut postrider(&["run", "--to", place]), 64);
    }
}

/// For NATS a user without a password is a token.
#[test]
fn in_the_configuration_that_is_shown() {
    for place in
        ["nats://c4n4ry@127.0.0.1:4222", "nats://me:c4n4ry@127.0.0.1:4222", "tls://c4n4ry@h,tls://c4n4ry@i"]
    {
        for json in [None, Some("--json")] {
            let folder =
                Folder::with(&format!("sinks:\n  a: {{ nats: {{ url: \"{place}\", stream: S }} }}\n"));
            let mut words = vec!["config", "show"];
            words.extend(json);
            let mut command = folder.postrider(&words);
            assert_silent(command.env("DATABASE_URL", "postgres://127.0.0.1:1/none"), 0);
        }
    }
}
