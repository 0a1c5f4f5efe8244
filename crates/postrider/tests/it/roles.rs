//! Least privilege: who may do what, asked of the catalog so that nothing new goes without a decision.

use std::time::{Duration, Instant};

use postrider::log::ring::{self, Turn};
use postrider::log::{Reader, ReaderOptions, Retention, Start};
use postrider_testkit::{Database, Version};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{PATIENCE, database, database_of, emit, read_types, run};

const ROLES: [&str; 4] = ["postrider_emit", "postrider_relay", "postrider_consume", "postrider_reader"];

/// What the relay's role may do with a relation, and whether the reader's role may look at it. Everybody else: nothing.
/// `None`: nobody has decided.
fn decision(relation: &str) -> Option<(&'static str, bool)> {
    let slot = |table: &str| relation.strip_prefix(table).is_some_and(|number| number.parse::<u8>().is_ok());
    Some(match relation {
        "progress" => ("select insert delete", false),
        "identity" | "ring" => ("select insert update", false),
        "bell" | "inbox_ring" => ("select update", false),
        "sinks" | "readers" | "in_flight" | "leases" | "parked" | "unparked" | "keepers" => {
            ("select insert update delete", false)
        }
        "all_adopted" => ("select update delete", false),
        // It sweeps the rows and sees no more of them than their age.
        "all_departed" => ("select delete", false),
        "adopted" => ("select", false),
        _ if slot("inbox_") => ("select", false),
        "inbox" => ("select delete", false),
        "cursors" | "backlog" | "lag" | "stuck" | "dead_letters" | "throughput" | "delivery" | "slots"
        | "relays" | "troubles" | "uncaptured" | "misfits" | "all_misfits" | "outbox_troubles"
        | "inbox_state" | "consumers" | "partitions" => ("select", true),
        "recorders" => ("select", false),
        // Names of the user's tables, nothing of their rows.
        "all_partitions" => ("select insert", true),
        // Jobs are reached by functions; of their state an operator, and who works them off, see the sums.
        "job_stats" => ("", true),
        // Rows of the user's tables, what a consumer's handler failed with: nobody's business but the owner's.
        "capture_failures"
        | "backfills"
        | "attempts"
        | "departed"
        | "dead_messages"
        | "dead_messages_number_seq" => ("", false),
        _ if relation.starts_with("job") => ("", false),
        // The first three stand between the other views, and show which events there are.
        "cursor_groups"
        | "places"
        | "late"
        | "events"
        | "seq"
        | "sinks_sink_seq"
        | "inbox_slots"
        | "inbox_phase"
        | "retries"
        | "parked_place_seq"
        | "recaptured"
        | "capture_failures_failure_seq" => ("select", false),
        "slot" | "progress_slot" | "armed" | "disarmed" | "armed_until" => ("usage select update", false),
        _ if slot("events_") || slot("progress_") => ("select truncate", false),
        _ => return None,
    })
}

/// The roles, in the order of [`ROLES`], that may call a function.
fn callers(function: &str) -> Option<[bool; 4]> {
    Some(match function {
        "emit" | "emit_many" | "set_context" | "emitted" => [true, false, true, false],
        "turn_inbox" | "take_ticket" | "disarm" => [false, true, true, false],
        "enqueue" | "enqueue_many" => [true, true, true, false],
        "first_time" | "inbox_retention" | "subscribe" | "next_batch" | "finish_batch" | "give_up"
        | "postpone" | "begin_try" | "next_batch_at" | "begin_attempt" | "fail_attempt" | "end_attempts"
        | "sweep_attempts" | "keep_message" | "claim_jobs" | "begin_jobs" | "settle_jobs" | "finish_jobs"
        | "extend_jobs" | "end_job_worker" | "reap_jobs" | "tend_jobs" | "next_job_at" | "job_lease"
        | "cancel_job" | "retry_job" | "pause_queue" | "set_queue" | "take_job_ticket" | "disarm_jobs"
        | "declare_cron" | "due_crons" | "tick_cron" => [false, false, true, false],
        "list_jobs" | "list_running_jobs" | "count_ready_jobs" => [false, false, true, true],
        // Whoever looks may ask, and is told nothing of a payload.
        "partitions_of" | "where_event" | "where_parked" | "where_unparked" | "where_oldest"
        | "where_sinks" => [false, true, false, true],
        "lanes" | "max_payload" | "schema_version" => [true; 4],
        // For the owners of captured tables, by `allow_capture`.
        "departed_row"
        | "allow_capture"
        | "may_capture"
        | "owns"
        | "named"
        | "owns_kept"
        | "remembers"
        | "recorder"
        | "record_body"
        | "adopt_body"
        | "make_recorder"
        | "let_record"
        | "hold_keeper"
        | "hand_over"
        | "uuid7"
        | "refuse_event"
        | "refuse_json"
        | "refuse_escape"
        | "refuse_headers"
        | "max_headers"
        | "checked_context"
        | "join_headers"
        | "ring_bell"
        | "keep_departed"
        | "base64"
        | "unknown_fields"
        | "row_json"
        | "referred_row"
        | "base_type"
        | "captured_headers"
        | "record_failure"
        | "has_failures"
        | "note_partitions"
        | "waits_behind"
        | "kept_row"
        | "kept_table"
        | "keeps_for"
        | "here"
        | "settle_failures"
        | "other_fields"
        | "is_truncated_alone"
        | "json_or_text"
        | "refuse_inbox"
        | "younger_xid"
        | "but_mine"
        | "find_consumer"
        | "read_lane"
        | "open_batch"
        | "job_backoff"
        | "job_band"
        | "job_horizon"
        | "is_job_on_its_way"
        | "list_ready_jobs"
        | "promote_jobs"
        | "rebase_jobs"
        | "refuse_job"
        | "refuse_snapshot"
        | "ring_job_bell"
        | "take_unique_key"
        | "turn_job_claims"
        | "turn_job_results"
        | "turn_jobs"
        | "unfinished_jobs"
        | "claim_band"
        | "cut_band"
        | "check_outcomes"
        | "check_queue"
        | "lock_job_slot"
        | "set_jobs_aside"
        | "give_up_on_deaf_clients" => [false; 4],
        _ => return None,
    })
}

/// What a role can do with each relation, as the server sees it.
async fn rights(connection: &mut PgConnection, role: &str) -> Vec<(String, String)> {
    sqlx::query_as(
        "select c.relname::text, coalesce((
            select string_agg(right_, ' ' order by place)
            from unnest(case c.relkind when 'S' then array['usage', 'select', 'update']
                        else array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger'] end)
                 with ordinality as r (right_, place)
            where case c.relkind when 'S' then has_sequence_privilege($1, c.oid, right_) else has_table_privilege($1, c.oid, right_)
                  or right_ not in ('delete', 'truncate', 'trigger') and has_any_column_privilege($1, c.oid, right_) end), '')
         from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') order by 1",
    )
    .bind(role)
    .fetch_all(connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn fault_113_every_relation_and_function_is_granted_to_those_who_need_it() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        for role in ROLES.into_iter().chain(["public"]) {
            for (relation, found) in rights(&mut connection, role).await {
                let (relay, reader) = decision(&relation)
                    .unwrap_or_else(|| panic!("nobody has decided who may use {relation}"));
                let expected = match (role, relation.as_str()) {
                    ("postrider_relay", _) => relay,
                    ("postrider_consume", "job_stats") => "select",
                    ("postrider_reader", _) if reader => "select",
                    _ => "",
                };
                assert_eq!(found, expected, "{version}: {role} on {relation}");
            }
            let functions: Vec<(String, bool)> = sqlx::query_as(
                "select p.proname::text, has_function_privilege($1, p.oid, 'execute') from pg_proc p
                 where p.pronamespace = 'postrider'::regnamespace",
            )
            .bind(role)
            .fetch_all(&mut connection)
            .await
            .unwrap();
            for (function, found) in functions {
                let callers = callers(&function)
                    .unwrap_or_else(|| panic!("nobody has decided who may call {function}"));
                let place = ROLES.iter().position(|known| *known == role);
                assert_eq!(
                    found,
                    place.is_some_and(|place| callers[place]),
                    "{version}: {role} on {function}"
                );
            }
            let schema: (bool, bool) = sqlx::query_as(
                "select has_schema_privilege($1, 'postrider', 'usage'), has_schema_privilege($1, 'postrider', 'create')",
            )
            .bind(role)
            .fetch_one(&mut connection)
            .await
            .unwrap();
            assert_eq!(schema, (role != "public", false), "{version}: {role}");
            let schema: (bool, bool) = sqlx::query_as(
                "select has_schema_privilege($1, 'postrider_capture', 'usage'), has_schema_privilege($1, 'postrider_capture', 'create')",
            )
            .bind(role)
            .fetch_one(&mut connection)
            .await
            .unwrap();
            let calls_or_looks = matches!(role, "postrider_relay" | "postrider_reader");
            assert_eq!(schema, (calls_or_looks, false), "{version}: {role}");
        }
    }
}

/// A user who may log in and is a member of `group`, if any.
struct User {
    name: String,
    options: PgConnectOptions,
}

impl User {
    async fn create(database: &Database, group: Option<&str>) -> Self {
        let name = format!("{}_{}", database.name(), group.unwrap_or("nobody"));
        let membership = group.map(|group| format!("in role {group}")).unwrap_or_default();
        sqlx::raw_sql(AssertSqlSafe(format!(r#"create role "{name}" login {membership}"#)))
            .execute(&mut database.connect().await.unwrap())
            .await
            .unwrap();
        let options = database.url().parse::<PgConnectOptions>().unwrap().username(&name);
        Self { name, options }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options).await.unwrap()
    }

    async fn drop(self, database: &Database) {
        sqlx::raw_sql(AssertSqlSafe(format!(r#"drop owned by "{0}"; drop role "{0}""#, self.name)))
            .execute(&mut database.connect().await.unwrap())
            .await
            .unwrap();
    }
}

async fn assert_denied(connection: &mut PgConnection, statement: &str) {
    let result = sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await;
    let error = result.expect_err(statement);
    let code = error.as_database_error().and_then(|error| error.code().map(String::from));
    assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
}

/// Statements that touch every relation in every way.
async fn intrusions(database: &Database) -> Vec<String> {
    let relations: Vec<(String, String)> = sqlx::query_as(
        "select c.oid::regclass::text, c.relkind::text from pg_class c
         where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'S') order by 1",
    )
    .fetch_all(&mut database.connect().await.unwrap())
    .await
    .unwrap();
    let mut statements = Vec::new();
    for (name, kind) in relations {
        statements.push(format!("select * from {name}"));
        statements.extend(match kind.as_str() {
            "S" => vec![format!("select nextval('{name}')"), format!("select setval('{name}', 7)")],
            "v" => Vec::new(),
            _ => vec![
                format!("insert into {name} default values"),
                format!("delete from {name}"),
                format!("truncate {name}"),
                format!("do $$ begin lock table {name} in share mode; end $$"),
            ],
        });
    }
    statements.push("update postrider.events set type = 'other'".to_owned());
    statements.push("update postrider.leases set owner = null".to_owned());
    statements.push("create table postrider.mine (n integer)".to_owned());
    statements.push("select postrider.ring_bell()".to_owned());
    statements.push("select postrider.uuid7()".to_owned());
    statements
}

#[tokio::test]
async fn fault_113_an_application_can_emit_and_nothing_else() {
    let database = database().await;
    let user = User::create(&database, Some("postrider_emit")).await;
    let mut app = user.connect().await;
    run(
        &mut app,
        "begin;
         select postrider.set_context('{\"initiator\": \"u\"}'), postrider.set_context('a', 'b');
         select postrider.emit('a', '{}'), postrider.emit('b', '{}'::json), postrider.emit('c', '{}'::jsonb);
         select postrider.emit_many('[{\"type\": \"d\", \"payload\": 1}]');
         select postrider.emit_many('[{\"type\": \"e\", \"payload\": 1}]'::json);
         select postrider.emit_many('[{\"type\": \"f\", \"payload\": 1}]'::jsonb);",
    )
    .await;
    let emitted: Vec<String> =
        sqlx::query_scalar("select type from postrider.emitted()").fetch_all(&mut app).await.unwrap();
    assert_eq!(emitted, ["a", "b", "c", "d", "e", "f"]);
    run(&mut app, "commit").await;
    // Of others it sees nothing, nor what it emitted before.
    emit(&mut database.connect().await.unwrap(), "of somebody else", "k").await;
    let emitted: Vec<String> =
        sqlx::query_scalar("select type from postrider.emitted()").fetch_all(&mut app).await.unwrap();
    assert_eq!(emitted, Vec::<String>::new());
    // A refusal reaches it as it should, though it may not call what words it.
    let error = sqlx::query("select postrider.emit('', '{}')").execute(&mut app).await.unwrap_err();
    assert!(error.to_string().contains("must not be empty"), "{error}");
    for statement in intrusions(&database).await {
        assert_denied(&mut app, &statement).await;
    }
    drop(app);
    user.drop(&database).await;
}

#[tokio::test]
async fn fault_113_a_stranger_can_do_nothing() {
    let database = database().await;
    let user = User::create(&database, None).await;
    let mut stranger = user.connect().await;
    for statement in intrusions(&database).await {
        assert_denied(&mut stranger, &statement).await;
    }
    for call in ["emit('a', '{}')", "emit_many('[]')", "emitted()", "set_context('a', 'b')", "lanes()"] {
        assert_denied(&mut stranger, &format!("select postrider.{call}")).await;
    }
    drop(stranger);
    user.drop(&database).await;
}

#[tokio::test]
async fn fault_113_an_operator_sees_the_views_and_nothing_else() {
    let database = database().await;
    let user = User::create(&database, Some("postrider_reader")).await;
    let mut operator = user.connect().await;
    for statement in intrusions(&database).await {
        let allowed = statement.strip_prefix("select * from postrider.");
        if allowed.and_then(decision).is_some_and(|(_, reader)| reader) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut operator).await.unwrap();
        } else {
            assert_denied(&mut operator, &statement).await;
        }
    }
    assert_denied(&mut operator, "select postrider.emit('a', '{}')").await;
    drop(operator);
    user.drop(&database).await;
}

#[tokio::test]
async fn fault_113_a_relay_reads_the_log_and_not_the_business() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let user = User::create(&database, Some("postrider_relay")).await;
        let mut owner = database.connect().await.unwrap();
        run(&mut owner, "create table public.business (secret text)").await;
        emit(&mut owner, "first", "k").await;
        let options = ReaderOptions { start: Start::Earliest, ..ReaderOptions::new("test") };
        // It hears itself within a second, unless the machine stands still for longer.
        let begun = Instant::now();
        let mut reader = loop {
            let reader = Reader::open(user.options.clone().into(), options.clone()).await.unwrap();
            if reader.silence().is_none() {
                break reader;
            }
            assert!(begun.elapsed() < PATIENCE, "{version}: {:?}", reader.silence());
            reader.close().await.unwrap();
        };
        assert_eq!(read_types(&mut reader, 1).await, ["first"], "{version}");
        // A second one shares the lanes, and gives them back.
        Reader::open(user.options.clone().into(), options).await.unwrap().close().await.unwrap();
        reader.close().await.unwrap();

        let mut relay = user.connect().await;
        let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
        assert_eq!(ring::turn(&mut relay, at_once).await.unwrap(), Turn::To(1), "{version}");
        assert_eq!(ring::turn_progress_beyond(&mut relay, 0).await.unwrap(), Some(1), "{version}");
        for statement in [
            "select * from public.business",
            "insert into postrider.events (slot, lane, id, type, payload) values (0, 0, gen_random_uuid(), 'forged', '{}')",
            "update postrider.events set type = 'forged'",
            "delete from postrider.events",
            "truncate postrider.events",
            "select nextval('postrider.seq')",
            "select setval('postrider.seq', 1)",
            "select postrider.emit('forged', '{}')",
            "alter table postrider.events_1 set unlogged",
            "create table postrider.mine (n integer)",
        ] {
            // Only the owner may alter a table, which is said with the same code.
            assert_denied(&mut relay, statement).await;
        }
        postrider::log::sink::forget(&mut relay, "test").await.unwrap();
        drop(relay);
        user.drop(&database).await;
    }
}
