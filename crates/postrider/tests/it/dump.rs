//! `pg_dump` and restore, as an operator does it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use postrider_testkit::{Database, PostgresServer, Template};

use crate::support::run;

/// What `pg_dump` writes, with these options. Debian's PostgreSQL 15 only: the others come without it.
pub async fn dump(database: &Database, arguments: &[&str]) -> String {
    let mut command = database.server().run_as("pg_dump").unwrap();
    command.args(arguments).arg("--dbname").arg(database.url());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A new database on `server` with what was dumped. The roles, which belong to no database, are created as a person would.
pub async fn restored(server: &PostgresServer, dump: String) -> Database {
    let database = server.database(&Template::empty()).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "do $$ declare role text; begin
            foreach role in array array['emit', 'relay', 'consume', 'reader'] loop
                begin execute format('create role postrider_%s nologin', role);
                exception when duplicate_object or unique_violation then null; end;
            end loop;
        end $$",
    )
    .await;
    let mut command = server.run_as("psql").unwrap();
    command.args(["-v", "ON_ERROR_STOP=1", "-q", "-d"]).arg(database.url());
    tokio::task::spawn_blocking(move || feed(&mut command, &dump)).await.unwrap();
    database
}

fn feed(command: &mut Command, input: &str) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
