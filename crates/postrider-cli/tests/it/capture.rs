//! `postrider plan`, `apply`, `recapture` and `sql --format`.

mod django;
mod docs;
mod migrations;
mod relay;

use std::path::PathBuf;
use std::process::Command;

use postrider_testkit::Database;
use serde_json::json;

use crate::support::{End, postrider_on};
use crate::world::{ask, installed, run};

/// A configuration file of its own, gone with the value.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(database: &Database, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    /// The command with this file.
    pub(crate) fn command(&self, database: &Database, words: &[&str]) -> Command {
        let mut command = postrider_on(&database.url(), words);
        command.args(["--config", self.0.to_str().unwrap()]);
        command
    }

    pub(crate) fn run(&self, database: &Database, words: &[&str]) -> End {
        End::of(&mut self.command(database, words))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const ORDERS: &str = "create table public.orders (id int primary key, total int, secret text);
     create table public.lines (id int primary key, order_id int)";
const DECLARED: &str = "tables:\n  public.orders:\n    entity: order\n    omit: [secret]\n";

/// A mistyped `tables` would be a file without any.
#[tokio::test]
async fn a_key_that_nobody_knows_is_not_taken_for_no_table() {
    let database = installed().await;
    let file = File::new(&database, &DECLARED.replace("tables:", "tabels:"));
    for words in [["plan"], ["apply"]] {
        let end = file.run(&database, &words).expect(78);
        assert!(
            end.stderr.contains("unknown key `tabels`") && end.stderr.contains("did you mean `tables`?"),
            "{}",
            end.stderr
        );
    }
}

#[tokio::test]
async fn a_plan_is_shown_applied_and_done() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let file = File::new(&database, DECLARED);
    let end = file.run(&database, &["plan"]).expect(2);
    assert!(end.stdout.contains("public.orders  missing"), "{}", end.stdout);
    assert!(end.stdout.contains("create trigger \"00_postrider\""), "{}", end.stdout);
    assert!(end.stderr.contains("1 to do: `postrider apply`"), "{}", end.stderr);
    let end = file.run(&database, &["apply"]).expect(0);
    assert_eq!(end.stderr, "public.orders: was missing, is installed\n");
    let end = file.run(&database, &["plan", "--json"]).expect(0);
    assert_eq!(end.json()["done"], json!(true));
    assert_eq!(end.json()["tables"][0]["state"], "installed");
    assert_eq!(
        file.run(&database, &["apply"]).expect(0).stderr,
        "everything is as declared: nothing to do\n"
    );
    run(&database, "insert into orders values (1, 7, 'x')").await;
    let event = ask(&database, "select type || ' ' || payload from postrider.events").await;
    assert!(event.starts_with("order.created") && !event.contains("secret"), "{event}");

    run(&database, "alter table orders disable trigger user").await;
    assert_eq!(file.run(&database, &["plan", "--json"]).expect(2).json()["tables"][0]["state"], "disabled");
    let changed = File::new(&database, "tables:\n  public.orders: { entity: purchase }\n");
    let plan = changed.run(&database, &["plan", "--json"]).expect(2).json();
    assert_eq!(plan["tables"][0]["state"], "outdated");
    assert!(plan["tables"][0]["statements"][0].as_str().unwrap().contains("'purchase'"));
}

#[tokio::test]
async fn orphans_are_named_and_removed_only_when_told() {
    let database = installed().await;
    run(&database, ORDERS).await;
    File::new(&database, "tables:\n  public.lines: { entity: line }\n").run(&database, &["apply"]).expect(0);
    let file = File::new(&database, DECLARED);
    let end = file.run(&database, &["apply"]).expect(0);
    assert!(end.stderr.contains("not declared and still captured: public.lines"), "{}", end.stderr);
    let end = file.run(&database, &["apply", "--remove-orphans"]).expect(2);
    assert!(end.stderr.contains("nothing was changed"), "{}", end.stderr);
    let plan = file.run(&database, &["plan", "--json"]).expect(2).json();
    assert_eq!(plan["tables"][1]["state"], "orphaned");
    file.run(&database, &["apply", "--remove-orphans", "--yes"]).expect(0);
    file.run(&database, &["plan"]).expect(0);
    let functions = "select count(*) from pg_proc where proname = 'capture_public_lines'";
    assert_eq!(ask(&database, functions).await, "0");
}

#[tokio::test]
async fn what_the_database_says_about_a_declaration_comes_with_its_line() {
    let database = installed().await;
    run(&database, ORDERS).await;
    for (text, line, said) in [
        ("tables:\n  public.oders: { entity: order }\n", 2, "there is no table public.oders"),
        (
            "tables:\n  public.orders:\n    entity: order\n    omit: [secert]\n",
            4,
            "there is no column secert",
        ),
        ("tables:\n  public.orders:\n    entity: order\n    tenant: total +\n", 4, "syntax error"),
        (
            "tables:\n  public.orders:\n    entity: o\n    extra:\n      n: (select count(*) from lines)\n",
            5,
            "with its schema",
        ),
    ] {
        let file = File::new(&database, text);
        for words in [&["plan"][..], &["apply"], &["config", "check", "--depth", "environment"]] {
            let end = file.run(&database, words).expect(78);
            assert!(
                end.stderr.contains(said) && end.stderr.contains(&format!("yaml:{line}")),
                "{}",
                end.stderr
            );
        }
    }
    let file = File::new(&database, DECLARED);
    file.run(&database, &["config", "check", "--depth", "environment"]).expect(0);
    let end = End::of(postrider_on(&database.url(), &["plan"]).current_dir(std::env::temp_dir().join(".")))
        .expect(78);
    assert!(end.stderr.contains("there is no postrider.yaml here"), "{}", end.stderr);
}

#[tokio::test]
async fn what_could_not_be_recorded_is_recaptured() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let broken = "tables:\n  public.orders: { entity: order, tenant: 100 / total, on_failure: record }\n";
    let file = File::new(&database, broken);
    file.run(&database, &["apply"]).expect(0);
    run(&database, "insert into orders values (1, 0), (2, 5)").await;
    let end = file.run(&database, &["recapture"]).expect(2);
    assert!(end.stderr.contains("the INSERT of the key 1 at"), "{}", end.stderr);
    assert!(end.stderr.contains("division by zero (error 22012)"), "{}", end.stderr);
    let end = file.run(&database, &["plan"]).expect(2);
    assert!(end.stderr.contains("public.orders: 1 writes are kept"), "{}", end.stderr);
    // It holds up nothing else, and is told of.
    let another = format!("{broken}  public.lines: {{ entity: line }}\n");
    let end = File::new(&database, &another).run(&database, &["apply"]).expect(2);
    assert!(end.stderr.contains("public.lines: was missing, is installed"), "{}", end.stderr);
    assert!(end.stderr.contains("public.orders: the INSERT of the key 1"), "{}", end.stderr);
    let mended =
        "tables:\n  public.orders: { entity: order, tenant: '100 / nullif(total, 0)', on_failure: record }\n";
    let file = File::new(&database, mended);
    let end = file.run(&database, &["recapture", "public.orders", "--json"]).expect(0);
    assert_eq!(
        end.json(),
        json!({ "recaptured": [{ "table": "public.orders", "writes": 1, "refused": null }], "left": [] })
    );
    assert_eq!(ask(&database, "select string_agg(key, ',' order by seq) from postrider.events").await, "2,1");
    file.run(&database, &["recapture", "public.lines"]).expect(78);
}

/// It is named when the others are done.
#[tokio::test]
async fn a_table_that_cannot_be_captured_holds_up_no_recapture_of_others() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let both = "tables:\n  public.lines: { entity: line }\n  public.orders: { entity: order }\n";
    let file = File::new(&database, both);
    file.run(&database, &["apply"]).expect(0);
    run(
        &database,
        "create table more () inherits (lines); alter table orders rename secret to hidden;
         insert into orders values (1, 1); alter table orders rename hidden to secret",
    )
    .await;
    let end = file.run(&database, &["recapture"]).expect(78);
    assert!(end.stderr.contains("public.lines has inheriting tables"), "{}", end.stderr);
    assert!(end.stderr.contains("public.orders: the events of 1 write are recorded"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*)::text from postrider.events").await, "1");
}

/// What can never be recorded is shown first, and given up by name.
#[tokio::test]
async fn what_can_never_be_recorded_is_given_up_when_asked() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let broken = "tables:\n  public.orders: { entity: order, tenant: 100 / total, on_failure: record }\n";
    let file = File::new(&database, broken);
    file.run(&database, &["apply"]).expect(0);
    run(&database, "insert into orders values (1, 0), (2, 0), (3, 0)").await;
    let end = file.run(&database, &["recapture", "--discard", "1", "--json"]).expect(2);
    assert_eq!((&end.json()["kept"], &end.json()["discarded"]), (&json!(1), &json!(0)));
    assert!(end.stderr.contains("1 write; with --yes"), "{}", end.stderr);
    file.run(&database, &["recapture", "--discard", "1", "--yes"]).expect(0);
    run(&database, "drop table lines; drop table orders").await;
    let file = File::new(&database, "tables: {}\n");
    let end = file.run(&database, &["recapture"]).expect(2);
    assert!(end.stderr.contains("there is no such table"), "{}", end.stderr);
    let end = file.run(&database, &["recapture", "--discard", "public.orders", "--yes"]).expect(0);
    assert!(end.stderr.contains("the events of 2 writes are given up"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*)::text from postrider.capture_failures").await, "0");
}

#[tokio::test]
async fn status_and_doctor_say_what_is_not_captured() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let file = File::new(&database, DECLARED);
    let capture = |end: End| end.json()["capture"].clone();
    assert_eq!(
        capture(file.run(&database, &["status", "--json"]).expect(2))["alarms"][0]["state"],
        "missing"
    );
    file.run(&database, &["apply"]).expect(0);
    assert_eq!(capture(file.run(&database, &["status", "--json"]).expect(0))["well"], json!(true));
    let line = |end: End| end.stdout.lines().find(|line| line.contains("  capture  ")).unwrap().to_owned();
    assert!(line(file.run(&database, &["doctor"])).starts_with("ok    capture"));

    run(&database, "alter table orders disable trigger user").await;
    let end = file.run(&database, &["status"]).expect(2);
    assert!(end.stdout.contains("public.orders: its trigger is disabled: "), "{}", end.stdout);
    assert!(line(file.run(&database, &["doctor"]).expect(2)).starts_with("bad   capture"));
    // Seen without a file too.
    let end = End::of(&mut postrider_on(&database.url(), &["status", "--json"])).expect(2);
    assert_eq!(end.json()["capture"]["alarms"][0]["table"], "public.orders");

    file.run(&database, &["apply"]).expect(0);
    run(&database, "alter table orders rename column total to sum; insert into orders values (1, 7)").await;
    let end = file.run(&database, &["status", "--json"]).expect(2);
    assert_eq!(end.json()["capture"]["alarms"][0]["state"], "outdated");
    assert_eq!(end.json()["capture"]["missing"][0]["writes"], 1);
    file.run(&database, &["apply"]).expect(0);
    file.run(&database, &["status"]).expect(0);
    // Whoever may only look sees it as well.
    run(&database, "alter table orders disable trigger user").await;
    let role = format!("{}_reader", database.name());
    run(&database, format!("create role \"{role}\" login in role postrider_reader")).await;
    let mut looking = file.command(&database, &["status", "--json"]);
    looking.env("DATABASE_URL", database.url_as(&role));
    assert_eq!(End::of(&mut looking).expect(2).json()["capture"]["alarms"][0]["state"], "disabled");
    run(&database, format!("drop role \"{role}\"")).await;
}
