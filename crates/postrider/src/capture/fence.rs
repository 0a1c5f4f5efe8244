//! What belongs to a table's owner runs with his rights, when whoever asks could do anything.
//!
//! A role that is set can be set back, by anything that is called under it. A function of his with `security definer` cannot be left,
//! but three things outlive it: settings of the session, triggers that are deferred, and the function itself, which is his to alter.
//! So each is made anew right before it is called, ends with nothing deferred, and afterwards names must mean what they meant before.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use super::generate::literal;
use super::making::dollar_quoted;
use super::plan::SEARCH_PATH;

/// Around what is run for one table.
#[derive(Debug)]
pub(super) struct Fence {
    /// Quoted.
    owner: String,
    /// As it was before.
    search_path: String,
}

impl Fence {
    /// `None` where whoever asks is no superuser: then he is the owner, or one of its members.
    pub(super) async fn around(connection: &mut PgConnection, table: i64) -> sqlx::Result<Option<Self>> {
        let found: Option<(String, String)> = sqlx::query_as(
            "select quote_ident(pg_get_userbyid(relowner)), current_setting('search_path') from pg_class
             where oid = $1::bigint::oid and current_setting('is_superuser') = 'on'",
        )
        .bind(table)
        .fetch_optional(connection)
        .await?;
        Ok(found.map(|(owner, search_path)| Self { owner, search_path }))
    }

    /// Runs statements of PL/pgSQL.
    pub(super) async fn run(&self, connection: &mut PgConnection, statements: &str) -> sqlx::Result<()> {
        let body = format!(
            "\ndeclare\n    found_row record;\nbegin\n{statements}\nset constraints all immediate;\nend\n"
        );
        // Of the names only ours may be without a schema, and none has an argument that could be taken for another.
        let fenced = format!(
            "drop function if exists pg_temp.postrider_fenced();
             create function pg_temp.postrider_fenced() returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as {};
             alter function pg_temp.postrider_fenced() owner to {};
             select pg_temp.postrider_fenced();
             {};
             drop function pg_temp.postrider_fenced()",
            dollar_quoted(&body),
            self.owner,
            self.intact(),
        );
        sqlx::raw_sql(AssertSqlSafe(fenced)).execute(connection).await?;
        Ok(())
    }

    /// Runs a query for its error, if it has one: it is one statement and no more. Names mean in it what they mean to whoever asks.
    pub(super) async fn probe(&self, connection: &mut PgConnection, query: &str) -> sqlx::Result<()> {
        let statements = format!(
            "perform set_config('search_path', {}, true); for found_row in execute {} loop end loop;",
            literal(&self.search_path),
            dollar_quoted(query)
        );
        self.run(connection, &statements).await
    }

    /// Makes a function that the owner may not have let into the schema yet, and asks it.
    async fn ask(&self, connection: &mut PgConnection, query: &str) -> sqlx::Result<String> {
        let asked = format!(
            "select postrider.allow_capture(pg_get_userbyid(r.oid), false) from pg_roles r where quote_ident(r.rolname) = {} and not postrider.may_capture(r.oid);
             create function pg_temp.postrider_asked() returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as {};
             alter function pg_temp.postrider_asked() owner to {}",
            literal(&self.owner),
            dollar_quoted(&format!("\nbegin\n    return ({query});\nend\n")),
            self.owner,
        );
        sqlx::raw_sql(AssertSqlSafe(asked)).execute(&mut *connection).await?;
        sqlx::query_scalar("select pg_temp.postrider_asked()").persistent(false).fetch_one(connection).await
    }

    /// Ends what ran for the owner: nothing of his is left for the commit, which is not his.
    pub(super) async fn close(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(self.intact())).execute(&mut *connection).await?;
        self.run(connection, "").await
    }

    /// A statement that fails if names have come to mean something else.
    fn intact(&self) -> String {
        format!("do {}", dollar_quoted(&format!("begin {} end", intact(&self.search_path))))
    }
}

/// The row that a query over this table answers, as JSON. Where whoever asks could do anything it is asked with the rights of the table's
/// owner; nothing that it does stays.
pub(crate) async fn asked(connection: &mut PgConnection, table: i64, query: &str) -> sqlx::Result<Value> {
    let query = format!("select row_to_json(postrider_answer)::text from ({query}) postrider_answer");
    let mut savepoint = connection.begin().await?;
    // Names are the server's, whatever the session has set.
    sqlx::query("select pg_catalog.set_config('search_path', $1, true)")
        .bind(SEARCH_PATH)
        .execute(&mut *savepoint)
        .await?;
    let answer: String = match Fence::around(&mut savepoint, table).await? {
        Some(fence) => fence.ask(&mut savepoint, &query).await?,
        None => sqlx::query_scalar(AssertSqlSafe(query)).persistent(false).fetch_one(&mut *savepoint).await?,
    };
    savepoint.rollback().await?;
    serde_json::from_str(&answer).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The same as a statement of PL/pgSQL. Whoever rolls back has the setting back.
pub(super) fn intact(search_path: &str) -> String {
    format!(
        "if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) {}::pg_catalog.text then
                raise exception using errcode = '42501', message = 'a function of the table''s owner has set another search path',
                    hint = 'Look at the casts, domains and functions that the table''s columns and expressions use.';
            end if;",
        literal(search_path)
    )
}

/// What names without a schema mean in this session, which a function that ran in it may have set, whosever rights it had.
pub(super) async fn names(connection: &mut PgConnection) -> sqlx::Result<String> {
    let asked = sqlx::raw_sql("select pg_catalog.current_setting('search_path')");
    connection.fetch_one(asked).await?.try_get(0)
}
