//! Migrations for other tools: each brings exactly what `apply` would have brought, and what takes it back.

use postrider_testkit::Database;

use super::{DECLARED, File, ORDERS};
use crate::sql::psql;
use crate::world::{ask, installed, run};

const TRIGGERS: &str = "select count(*) from pg_trigger where tgname like '00\\_postrider%'";

async fn orders() -> (Database, File) {
    let database = installed().await;
    run(&database, ORDERS).await;
    let file = File::new(&database, DECLARED);
    (database, file)
}

#[tokio::test]
async fn scripts_run_forwards_and_back() {
    for format in ["plain", "sqlx", "flyway"] {
        let (database, file) = orders().await;
        let up = file.run(&database, &["sql", "--format", format]).expect(0).stdout;
        let down = file.run(&database, &["sql", "--format", format, "--reverse"]).expect(0).stdout;
        // As the tools do it: in a transaction of theirs.
        let in_transaction = |script: &str| {
            if format == "plain" { script.to_owned() } else { format!("begin;\n{script}commit;\n") }
        };
        psql(&database, &in_transaction(&up)).expect(0);
        file.run(&database, &["plan"]).expect(0);
        let end = file.run(&database, &["sql", "--format", format]).expect(0);
        assert_eq!(end.stdout, "", "only what differs");
        psql(&database, &in_transaction(&down)).expect(0);
        assert_eq!(ask(&database, TRIGGERS).await, "0", "{format}");
    }
}

#[tokio::test]
async fn a_change_is_taken_back_to_what_was_before() {
    let (database, file) = orders().await;
    file.run(&database, &["apply"]).expect(0);
    let before = ask(&database, "select prosrc from pg_proc where proname = 'capture_public_orders'").await;
    let changed = File::new(&database, "tables:\n  public.orders: { entity: purchase }\n");
    let up = changed.run(&database, &["sql", "--format", "plain"]).expect(0).stdout;
    let down = changed.run(&database, &["sql", "--format", "plain", "--reverse"]).expect(0).stdout;
    psql(&database, &up).expect(0);
    changed.run(&database, &["plan"]).expect(0);
    psql(&database, &down).expect(0);
    let after = ask(&database, "select prosrc from pg_proc where proname = 'capture_public_orders'").await;
    assert_eq!(before, after);
}

/// Python itself reads the module; the statements it comes to are run in its order.
#[tokio::test]
async fn a_module_of_django_means_exactly_the_statements() {
    const READ: &str = r"
import json, sys, types
class RunSQL:
    def __init__(self, sql, reverse_sql):
        self.sql, self.reverse_sql = sql, reverse_sql
migrations = types.SimpleNamespace(RunSQL=RunSQL, Migration=object)
sys.modules['django'] = types.ModuleType('django')
sys.modules['django.db'] = types.SimpleNamespace(migrations=migrations)
scope = {}
exec(sys.stdin.read(), scope)
m = scope['Migration']
print(json.dumps([m.dependencies, m.operations[0].sql, m.operations[0].reverse_sql]))
";
    let (database, _) = orders().await;
    run(&database, "create table public.\"a\"\"b\\c\" (id int primary key, \"x\"\"\"\"y\" text)").await;
    let file = File::new(
        &database,
        "tables:\n  'public.\"a\"\"b\\c\"': { entity: 'a\\b\"c' }\n  public.orders: { entity: order }\n",
    );
    let module =
        file.run(&database, &["sql", "--format", "django", "--after", "shop.0007_orders"]).expect(0).stdout;
    let mut python = std::process::Command::new("python3");
    let mut child = python
        .args(["-c", READ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), module.as_bytes()).unwrap();
    let end = crate::support::End::from(child.wait_with_output().unwrap()).expect(0);
    let (dependencies, forwards, backwards): (Vec<(String, String)>, Vec<String>, Vec<String>) =
        serde_json::from_str(&end.stdout).unwrap();
    assert_eq!(dependencies, [("shop".to_owned(), "0007_orders".to_owned())]);
    let in_transaction = |statements: &[String]| format!("begin; {}; commit", statements.join(";\n"));
    run(&database, in_transaction(&forwards)).await;
    file.run(&database, &["plan"]).expect(0);
    run(&database, in_transaction(&backwards)).await;
    assert_eq!(ask(&database, TRIGGERS).await, "0");
}

#[tokio::test]
async fn a_class_of_rails_holds_every_statement_as_it_is() {
    let (database, file) = orders().await;
    let class = file.run(&database, &["sql", "--format", "rails"]).expect(0).stdout;
    let (up, down) = class.split_once("  def down\n").unwrap();
    for (part, triggers) in [(up, "2"), (down, "0")] {
        // What stands between the lines of a quoted heredoc is taken as it is.
        let statements: Vec<&str> =
            part.split("execute <<'SQL'\n").skip(1).filter_map(|rest| rest.split("\nSQL\n").next()).collect();
        run(&database, format!("begin; {}; commit", statements.join(";\n"))).await;
        assert_eq!(ask(&database, TRIGGERS).await, triggers, "{class}");
    }
}
