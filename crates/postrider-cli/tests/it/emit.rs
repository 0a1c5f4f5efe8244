//! `postrider emit`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use crate::support::{End, postrider, postrider_on};
use crate::world::{ask, installed, on, run};

const EVENTS: &str = "select string_agg(type || ' ' || coalesce(key, '-') || ' ' || payload::text, ', ' order by seq) from postrider.events";

#[tokio::test]
async fn one_event_from_the_command_line() {
    let database = installed().await;
    let words =
        ["emit", "order.paid", "{\"order\" :  7}", "--key", "7", "--tenant", "acme", "--entity", "order"];
    let end = on(&database, &[&words[..], &["--header", "a=b=c", "--header", "d=e"]].concat()).expect(0);
    let id = end.stdout.trim();
    assert_eq!(ask(&database, "select id from postrider.events").await, id);
    assert_eq!(ask(&database, EVENTS).await, "order.paid 7 {\"order\" :  7}");
    assert_eq!(
        ask(&database, "select tenant || entity || headers::text from postrider.events").await,
        r#"acmeorder{"a":"b=c","d":"e"}"#
    );
    let document = on(&database, &["emit", "order.paid", "null", "--json"]).expect(0).json();
    assert_eq!(document["id"].as_str().unwrap().len(), 36);

    let end = on(&database, &["emit", "order.paid", "hello"]).expect(1);
    assert!(end.stderr.starts_with("error: the input is refused: "), "{}", end.stderr);
    assert!(
        end.stderr.contains("is not JSON") && end.stderr.matches("hint: ").count() == 1,
        "{}",
        end.stderr
    );
    for words in [
        &["emit"][..],
        &["emit", "a"],
        &["emit", "a", "1", "--header", "x"],
        &["emit", "a", "1", "--file", "-"],
        &["emit", "a", "1", "--batch", "7"],
        &["emit", "a", "1", "--skip", "7"],
    ] {
        on(&database, words).expect(64);
    }
    let twice = ["emit", "a", "1", "--header", "trace=1", "--header", "x=1", "--header", "trace=2"];
    let end = on(&database, &twice).expect(64);
    assert!(end.stderr.contains("the header \"trace\" is given more than once"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.events").await, "2", "nothing was written");
}

/// What the user gave is not a failure of the database, and each thing is said once.
#[tokio::test]
async fn what_is_wrong_with_an_event_is_said_as_it_is() {
    let database = installed().await;
    let end = on(&database, &["emit", "", "{}"]).expect(1);
    assert_eq!(
        end.stderr,
        "error: the input is refused: the type of an event must not be empty\n  detail: Nothing was written.\n  \
         hint: Name what happened, for example 'order.paid'.\n"
    );
    // Somebody who may not emit is told who may.
    let role = format!("{}_nobody", database.name());
    run(&database, format!("create role {role} login in role postrider_reader")).await;
    let end = End::of(&mut postrider_on(&database.url_as(&role), &["emit", "order.paid", "{}"])).expect(1);
    assert_eq!(
        end.stderr,
        "error: the database failed: permission denied for function emit\n  hint: the role lacks a privilege: make it a member of the \
         role for the task (postrider_emit emits, postrider_reader looks at the views, postrider_consume consumes, works off jobs \
         and changes them, postrider_relay carries events and changes what is parked or paused; who owns captured tables and installs their triggers is let to with `select \
         postrider.allow_capture('ROLE')`), or restore what that role may do with `postrider init`\n"
    );
    run(&database, format!("drop role {role}")).await;
}

/// Runs the binary with this text on its standard input.
fn piped(url: &str, words: &[&str], input: &str) -> End {
    let mut child = postrider_on(url, words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    End::from(child.wait_with_output().unwrap())
}

fn lines(numbers: std::ops::RangeInclusive<u32>) -> String {
    let mut text = String::new();
    for n in numbers {
        writeln!(text, r#"{{"type": "t", "payload": {n}, "key": "k{n}"}}"#).unwrap();
    }
    text
}

#[tokio::test]
async fn many_events_from_a_pipe_in_order() {
    let database = installed().await;
    let input =
        format!("{}\n{}", lines(1..=3), r#"{"type":"t","payload":"a \" string","headers":{"h":"v"}}"#);
    let end = piped(&database.url(), &["emit", "--file", "-", "--batch", "2"], &input).expect(0);
    assert_eq!(end.stderr, "4 events committed\n");
    assert_eq!(ask(&database, EVENTS).await, "t k1 1, t k2 2, t k3 3, t - \"a \\\" string\"");
    assert_eq!(
        ask(&database, "select count(distinct xid) from postrider.events").await,
        "3",
        "three batches of two lines, one of them blank"
    );
    let document = piped(&database.url(), &["emit", "--file", "-", "--json"], &lines(1..=2)).expect(0).json();
    assert_eq!(document, json!({"committed": 2, "last_line": 2, "error": null}));
}

#[tokio::test]
async fn a_bad_line_stops_with_its_number_and_one_can_go_on() {
    let database = installed().await;
    let bad = lines(1..=4) + "{\"type\": \"t\", \"payload\": 5, \"kye\": \"k\"}\n" + &lines(6..=6);
    let end = piped(&database.url(), &["emit", "--file", "-", "--batch", "3"], &bad).expect(1);
    assert!(end.stderr.contains("line 5") && end.stderr.contains("unknown field `kye`"), "{}", end.stderr);
    assert!(!end.stderr.contains("line 1"), "a line knows only its columns: {}", end.stderr);
    assert!(end.stderr.contains("3 events committed, up to line 3; go on with --skip 3"), "{}", end.stderr);
    assert_eq!(ask(&database, EVENTS).await, "t k1 1, t k2 2, t k3 3", "nothing of its transaction");

    let good = bad.replace("kye", "key");
    piped(&database.url(), &["emit", "--file", "-", "--batch", "3", "--skip", "3"], &good).expect(0);
    assert_eq!(
        ask(&database, "select string_agg(payload::text, ' ' order by seq) from postrider.events").await,
        "1 2 3 4 5 6"
    );
}

/// It would look like success.
#[tokio::test]
async fn more_lines_left_out_than_there_are_is_an_error() {
    let database = installed().await;
    let skip = |lines_left_out: &str| {
        piped(&database.url(), &["emit", "--file", "-", "--json", "--skip", lines_left_out], &lines(1..=3))
    };
    let end = skip("4").expect(1);
    assert!(end.stderr.contains("--skip 4") && end.stderr.contains("has 3 lines"), "{}", end.stderr);
    assert!(!end.stderr.contains("go on"), "{}", end.stderr);
    assert_eq!((&end.json()["committed"], &end.json()["last_line"]), (&json!(0), &json!(3)));
    let end = skip("3").expect(0);
    assert_eq!(end.stderr, "0 events committed\n", "all of it was committed before");
    assert_eq!(ask(&database, "select count(*) from postrider.events").await, "0");
}

#[tokio::test]
async fn what_the_server_refuses_is_told_by_its_line() {
    let database = installed().await;
    let long = "x".repeat(300);
    let bad = lines(1..=3) + "\n" + &format!("{{\"type\": \"{long}\", \"payload\": 1}}\n");
    let end = piped(&database.url(), &["emit", "--file", "-", "--batch", "2", "--json"], &bad).expect(1);
    assert!(end.stderr.contains("line 5") && end.stderr.contains("255 are allowed"), "{}", end.stderr);
    assert_eq!((&end.json()["committed"], &end.json()["last_line"]), (&json!(3), &json!(4)));
}

#[tokio::test]
async fn a_silent_pipe_gets_committed_what_it_brought() {
    let database = installed().await;
    let mut child = postrider_on(&database.url(), &["emit", "--file", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines(1..=2).as_bytes()).unwrap();
    stdin.flush().unwrap();
    while ask(&database, "select count(*) from postrider.events").await != "2" {}
    drop(stdin);
    let end = End::from(child.wait_with_output().unwrap()).expect(0);
    assert_eq!(end.stderr, "2 events committed\n", "and no bar without a terminal");
}

#[test]
fn a_file_that_is_not_there_is_found_without_a_database() {
    let end = End::of(&mut postrider(&["emit", "--file", "no/such/file"])).expect(1);
    assert!(end.stderr.contains("no/such/file"), "{}", end.stderr);
}

#[test]
fn without_arguments_it_says_both_ways() {
    let end = End::of(&mut postrider(&["emit"])).expect(64);
    assert!(
        end.stderr.contains("<TYPE> <PAYLOAD>") && end.stderr.contains("--file <PATH>"),
        "{}",
        end.stderr
    );
}
