//! Random tables, random writes: a copy that knows nothing but the events equals the table at the end.

mod tables;

use postrider::capture::{self, Table};
use postrider_testkit::{Seed, Version};
use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::{AssertSqlSafe, PgConnection};

use self::tables::{Field, Subject};
use super::{captured_on, execute};

/// Settings that change how values look as text; none of them may change an event.
const SETTINGS: [&str; 8] = [
    "timezone = 'Asia/Kathmandu'",
    "datestyle = 'SQL, DMY'",
    "datestyle = 'German'",
    "intervalstyle = 'sql_standard'",
    "extra_float_digits = -3",
    "bytea_output = 'escape'",
    "timezone = 'UTC'",
    "timezone = 'Etc/UTC'",
];

/// What is written by one statement; it may fail for reasons of its own, such as a key that is taken.
fn statement(rng: &mut StdRng, subject: &Subject) -> String {
    let some = |rng: &mut StdRng| match rng.random_range(0..3) {
        0 => String::new(),
        1 => format!(" where key = {}", subject.key(rng)),
        _ => format!(" where hashtext(key::text) % 3 = {}", rng.random_range(0..3)),
    };
    let assignments = |rng: &mut StdRng| {
        let fields: Vec<&Field> = subject.written().filter(|_| rng.random_bool(0.4)).collect();
        let set: Vec<String> =
            fields.iter().map(|field| format!("{} = {}", field.name, field.kind.value(rng))).collect();
        if set.is_empty() { "key = key".to_owned() } else { set.join(", ") }
    };
    match rng.random_range(0..12) {
        0..4 => format!("{} on conflict (key) do nothing", subject.insert(rng)),
        4 => format!("{} on conflict (key) do update set {}", subject.insert(rng), assignments(rng)),
        5..9 => format!("update things set {}{}", assignments(rng), some(rng)),
        9 => format!("update things set key = {} where key = {}", subject.key(rng), subject.key(rng)),
        10 => format!("delete from things where key = {}", subject.key(rng)),
        _ if rng.random_bool(0.1) => "truncate things".to_owned(),
        _ => format!("delete from things{}", some(rng)),
    }
}

async fn attempt(connection: &mut PgConnection, statements: &str) -> bool {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.is_ok()
}

/// One step: a statement, a transaction of some, a setting, or another shape of the table.
async fn step(connection: &mut PgConnection, rng: &mut StdRng, subject: &mut Subject, declared: &[Table]) {
    match rng.random_range(0..40) {
        0..28 => {
            attempt(connection, &statement(rng, subject)).await;
        }
        28..34 => {
            execute(connection, "begin").await;
            for _ in 0..rng.random_range(1..4) {
                execute(connection, "savepoint s").await;
                let written = attempt(connection, &statement(rng, subject)).await;
                if !written || rng.random_bool(0.3) {
                    execute(connection, "rollback to s").await;
                }
            }
            execute(connection, if rng.random_bool(0.7) { "commit" } else { "rollback" }).await;
        }
        34..37 => {
            execute(connection, &format!("set {}", SETTINGS[rng.random_range(0..SETTINGS.len())])).await;
        }
        37 => {
            let field = subject.grow(rng);
            execute(
                connection,
                &format!("alter table things add column {} {}", field.name, field.kind.name()),
            )
            .await;
        }
        38 => {
            if let Some(name) = subject.shrink(rng) {
                execute(connection, &format!("alter table things drop column {name}")).await;
            }
        }
        _ => {
            capture::apply(connection, declared, false).await.unwrap();
        }
    }
}

/// Builds the copy from the events alone.
async fn rebuild(connection: &mut PgConnection, subject: &Subject) {
    let mut columns = vec!["key".to_owned()];
    columns.extend(subject.fields.iter().map(|field| field.name.clone()));
    let values: Vec<String> = std::iter::once("r.key".to_owned())
        .chain(subject.fields.iter().map(|field| {
            let name = &field.name;
            if field.kind.is_bytes() {
                format!("decode(e.data ->> '{name}', 'base64')")
            } else {
                format!("r.{name}")
            }
        }))
        .collect();
    execute(
        connection,
        &format!(
            "create table shadow as table things with no data;
             do $$
             declare
                 e record;
             begin
                 for e in select type, payload -> 'data' as data, payload -> 'previous_attributes' as before from postrider.events order by seq loop
                     if e.type = 'thing.truncated' then
                         delete from shadow;
                         continue;
                     end if;
                     delete from shadow where key = (json_populate_record(null::shadow, e.data)).key;
                     if e.before -> 'key' is not null then
                         delete from shadow where key = (json_populate_record(null::shadow, e.before)).key;
                     end if;
                     if e.type <> 'thing.deleted' then
                         insert into shadow ({}) select {} from json_populate_record(null::shadow, e.data) r;
                     end if;
                 end loop;
             end $$",
            columns.join(", "),
            values.join(", ")
        ),
    )
    .await;
}

async fn copy_equals_table(version: Version, steps: u32) {
    let seed = Seed::from_env_or_random(&format!("random tables on {version:?}"));
    let rng = &mut seed.rng();
    let mut subject = Subject::random(rng);
    let declared = [Table::new("public.things", "thing")];
    let (_database, mut connection) = captured_on(version, &subject.create(), &declared).await;
    for _ in 0..steps {
        step(&mut connection, rng, &mut subject, &declared).await;
    }
    capture::apply(&mut connection, &declared, false).await.unwrap();
    execute(&mut connection, "reset all").await;
    rebuild(&mut connection, &subject).await;
    let differences: Vec<(String, String)> = sqlx::query_as(
        "(select 'only in the table', t::text from things t except all select 'only in the table', s::text from shadow s)
         union all (select 'only in the copy', s::text from shadow s except all select 'only in the copy', t::text from things t)",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(differences.is_empty(), "{}\n{differences:#?}", subject.create());
    let (events, failures): (i64, i64) = sqlx::query_as(
        "select (select count(*) from postrider.events), (select count(*) from postrider.capture_failures)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(events > i64::from(steps) / 5 && failures == 0, "{events} events, {failures} failures");
}

fn steps() -> u32 {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { 5_000 } else { 250 }
}

#[tokio::test]
async fn a_copy_made_of_events_equals_the_table() {
    for _ in 0..3 {
        copy_equals_table(Version::default(), steps()).await;
    }
}

#[tokio::test]
async fn a_copy_made_of_events_equals_the_table_on_14() {
    copy_equals_table(Version::V14, steps()).await;
}

#[tokio::test]
async fn a_copy_made_of_events_equals_the_table_on_18() {
    copy_equals_table(Version::V18, steps()).await;
}
