//! Calls that `emit` refuses: with an SQLSTATE to catch, what was found, what to do, and nothing written.

mod cases;

use postrider::schema::{self, Install};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, PgConnection};

use self::cases::{Case, EMIT, EMIT_MANY, IN_CONTEXT, NO_OBJECT};
use super::{count_events, fails};
use crate::support::{database_of, run};

/// 15 parses JSON in a block with a handler, 16 and later ask IS JSON.
const VERSIONS: [Version; 2] = [Version::V15, Version::V18];

async fn with_small_payloads(version: Version) -> (Database, PgConnection) {
    let database = database_of(version).await;
    let mut connection = database.connect().await.unwrap();
    let install = Install { max_payload: Some(1000), ..Install::default() };
    schema::install(&mut connection, &install).await.unwrap();
    (database, connection)
}

impl Case {
    async fn is_refused(&self, connection: &mut PgConnection, version: Version) {
        let Self { call, code, message, detail, hint } = self;
        let said = fails(connection, &format!("select postrider.{call}")).await;
        assert_eq!(said.code, *code, "{version}: {call}: {}", said.message);
        assert!(said.message.starts_with("postrider: "), "{version}: {call}: {}", said.message);
        assert!(said.message.contains(message), "{version}: {call}: {}", said.message);
        assert!(said.detail.contains(detail), "{version}: {call}: {}", said.detail);
        assert!(said.detail.contains("Nothing was written."), "{version}: {call}: {}", said.detail);
        assert!(said.hint.contains(hint), "{version}: {call}: {}", said.hint);
    }
}

async fn refuses(cases: &[Case]) {
    for version in VERSIONS {
        let (_database, mut connection) = with_small_payloads(version).await;
        for case in cases {
            case.is_refused(&mut connection, version).await;
        }
        assert_eq!(count_events(&mut connection).await, 0, "{version}");
    }
}

#[tokio::test]
async fn emit_refuses() {
    refuses(EMIT).await;
}

#[tokio::test]
async fn emit_many_refuses() {
    refuses(EMIT_MANY).await;
}

/// A context set by hand, past `set_context`, may be anything; it must neither become headers nor an error nobody understands.
#[tokio::test]
async fn a_bad_context_is_refused() {
    for version in VERSIONS {
        let (_database, mut connection) = with_small_payloads(version).await;
        for (context, case) in IN_CONTEXT {
            run(&mut connection, "begin").await;
            sqlx::query("select set_config('postrider.context', $1, true)")
                .bind(context)
                .execute(&mut connection)
                .await
                .unwrap();
            case.is_refused(&mut connection, version).await;
            run(&mut connection, "rollback").await;
        }
        // As somebody would write it, and the way out.
        run(&mut connection, "begin; set local postrider.context = '[1]'; savepoint s").await;
        NO_OBJECT.is_refused(&mut connection, version).await;
        run(&mut connection, "rollback to s; set local postrider.context = ''").await;
        run(&mut connection, "select postrider.emit('t', '{}'); rollback").await;
        assert_eq!(count_events(&mut connection).await, 0, "{version}");
    }
}

/// The limit of headers counts what the context adds.
#[tokio::test]
async fn headers_and_context_have_one_limit() {
    const LARGE: &str = "set_context('large', repeat('x', 40000))";
    for version in VERSIONS {
        let (_database, mut connection) = with_small_payloads(version).await;
        for call in [
            "emit('t', '{}', headers => format('{\"h\":\"%s\"}', repeat('x', 40000)))",
            "emit_many(json_build_array(json_build_object('type', 't', 'payload', 1, 'headers', json_build_object('h', repeat('x', 40000)))))",
        ] {
            let alone = format!(
                "begin; select postrider.{call}; select postrider.{LARGE}; select postrider.emit('t', '{{}}'); rollback"
            );
            sqlx::raw_sql(AssertSqlSafe(alone)).execute(&mut connection).await.unwrap();
            let said =
                fails(&mut connection, &format!("begin; select postrider.{LARGE}; select postrider.{call}"))
                    .await;
            assert_eq!(said.code, "54000", "{version}: {call}: {}", said.message);
            assert!(said.detail.contains("65536 are allowed"), "{version}: {call}: {}", said.detail);
            run(&mut connection, "rollback").await;
        }
    }
}

#[tokio::test]
async fn set_context_refuses() {
    for version in VERSIONS {
        let (_database, mut connection) = with_small_payloads(version).await;
        for (call, detail) in [
            ("set_context(null::jsonb)", "null"),
            ("set_context('[]'::jsonb)", "a JSON array"),
            ("set_context(null, 'user-7')", "The name is null"),
        ] {
            let said = fails(&mut connection, &format!("select postrider.{call}")).await;
            assert_eq!(said.code, "22023", "{call}");
            assert!(said.detail.contains(detail), "{call}: {}", said.detail);
            assert!(!said.hint.is_empty(), "{call}");
        }
    }
}

/// A refusal can be caught, and the rest of the transaction stands.
#[tokio::test]
async fn a_refusal_can_be_caught() {
    for version in VERSIONS {
        let (_database, mut connection) = with_small_payloads(version).await;
        run(
            &mut connection,
            "do $$ begin
                perform postrider.emit('before', '{}');
                begin
                    perform postrider.emit_many('[{\"type\": \"lost\", \"payload\": 1}, {\"type\": \"\", \"payload\": 1}]');
                exception when invalid_parameter_value then
                    perform postrider.emit('instead', '{}');
                end;
            end $$",
        )
        .await;
        let types: Vec<String> = sqlx::query_scalar("select type from postrider.events order by seq")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(types, ["before", "instead"], "{version}");
    }
}
