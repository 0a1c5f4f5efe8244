//! One database for each way, with the same issues.

use anyhow::{Context, Result, ensure};
use postrider::capture::{self, Change, Table};
use postrider::schema::{self, Install};
use postrider_testkit::bench::print_facts;
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

const ISSUES: &str = include_str!("issues.sql");
const LOOP: &str = include_str!("loop.sql");
const FLOOR: &str = include_str!("floor.sql");

/// What an update changes: two columns, one event.
pub(crate) const CHANGE: &str =
    "priority = case priority when 'high' then 'low' else 'high' end, updated_at = clock_timestamp()";

/// The columns of a bare insert, and what goes into them: all that our trigger writes. What follows is the rest of an event.
pub(crate) const BARE: (&str, &str) =
    ("slot, id, lane, type, entity, key, tenant, payload, headers", "0::smallint, gen_random_uuid()");

pub(crate) struct Ways {
    /// No trigger.
    pub(crate) none: Way,
    /// As declared.
    pub(crate) ours: Way,
    /// A loop over the catalog, an EXECUTE per column.
    pub(crate) looping: Way,
    /// No trigger, and in `ready` the events that ours has made of the same update.
    pub(crate) limit: Way,
    /// A row trigger that does nothing.
    pub(crate) empty: Way,
    /// A row trigger that inserts an event of the same size, made beforehand, and does nothing else.
    pub(crate) inserting: Way,
    /// In each of them.
    pub(crate) rows: u32,
    _server: PostgresServer,
}

pub(crate) struct Way {
    database: Database,
    /// Where its events go, if there are any.
    events: Option<&'static str>,
}

impl Ways {
    pub(crate) async fn start(rows: u32) -> Result<Self> {
        let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
        print_facts(&server).await?;
        let log = Some("postrider.events");
        let way = async |events| anyhow::Ok(Way { database: tracker(&server, rows).await?, events });
        let (none, ours, limit) = (way(None).await?, way(log).await?, way(log).await?);
        let looping = way(Some("public.outbox")).await?;
        run(&mut looping.database.connect().await?, LOOP).await?;
        capture::apply(&mut ours.database.connect().await?, &[declared()], false).await?;
        limit.make_ready().await?;
        let (empty, inserting) = (way(None).await?, way(log).await?);
        inserting.make_ready().await?;
        for floor in [&empty, &inserting] {
            run(&mut floor.database.connect().await?, FLOOR).await?;
        }
        Ok(Self { none, ours, looping, limit, empty, inserting, rows, _server: server })
    }
}

impl Way {
    /// A connection to a database where every run finds the same: no dead rows, no events.
    pub(crate) async fn fresh(&self) -> Result<PgConnection> {
        let mut connection = self.database.connect().await?;
        run(&mut connection, "vacuum analyze public.issues").await?;
        if let Some(events) = self.events {
            run(&mut connection, &format!("truncate {events}")).await?;
        }
        run(&mut connection, "checkpoint").await?;
        Ok(connection)
    }

    /// Fails unless every change has made its event: a way that misses some is fast for nothing.
    pub(crate) async fn check(&self, connection: &mut PgConnection, changes: u32) -> Result<()> {
        if let Some(events) = self.events {
            let question = format!("select count(*) from {events}");
            let found: i64 = sqlx::query_scalar(AssertSqlSafe(question)).fetch_one(connection).await?;
            ensure!(found == i64::from(changes), "{changes} changes made {found} events in {events}");
        }
        Ok(())
    }

    /// Keeps the events that our trigger makes, and takes the trigger away again.
    async fn make_ready(&self) -> Result<()> {
        let mut connection = self.database.connect().await?;
        capture::apply(&mut connection, &[declared()], false).await?;
        run(&mut connection, &format!("update public.issues set {CHANGE}")).await?;
        run(
            &mut connection,
            "create table public.ready as
                 select lane, type, entity, key, tenant, payload, headers from postrider.events order by seq",
        )
        .await?;
        run(&mut connection, "vacuum analyze public.ready").await?;
        capture::apply(&mut connection, &[], true).await?;
        let triggers =
            "select count(*) from pg_trigger where tgrelid = 'public.issues'::regclass and not tgisinternal";
        let left: i64 = sqlx::query_scalar(triggers).fetch_one(&mut connection).await?;
        ensure!(left == 0, "a trigger is left where there should be none");
        Ok(())
    }
}

async fn tracker(server: &PostgresServer, rows: u32) -> Result<Database> {
    let template = Template::new("postrider", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    let database = server.database(&template).await?;
    let mut connection = database.connect().await?;
    run(&mut connection, ISSUES).await?;
    let filled = format!(
        "insert into public.issues
         select lpad(to_hex(n), 32, '0')::uuid, 'Issue ' || n, n % 5, case when n % 20 = 0 then 1 end, n % 100, n % 1000, 'low', n % 50 + 0.5,
                date '2026-01-01' + n % 300, date '2026-02-01' + n % 300, n, n, repeat('x', 200), now(), now(), null
         from generate_series(1, {rows}) n"
    );
    run(&mut connection, &filled).await?;
    // Updates are as in a table that has seen some.
    run(&mut connection, &format!("update public.issues set {CHANGE}")).await?;
    Ok(database)
}

/// As `docs/capture.md` declares it.
fn declared() -> Table {
    let state = Change { verb: "state.updated".to_owned(), beside: false };
    Table {
        key: Some("id".to_owned()),
        tenant: Some("workspace_id".to_owned()),
        r#type: Some("case when type_id is null then 'workitem' else 'epic' end".to_owned()),
        changes: [("state_id".to_owned(), state)].into(),
        soft_delete: Some("deleted_at".to_owned()),
        ignore: vec!["sort_order".to_owned()],
        headers: [("project_id".to_owned(), "project_id".to_owned())].into(),
        context: vec!["app.initiator_id".to_owned(), "app.initiator_type".to_owned()],
        ..Table::new("public.issues", "issue")
    }
}

/// The id of an issue, as [`tracker`] makes them.
pub(crate) fn id(number: u32) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

/// Runs statements that need no answer.
pub(crate) async fn run(connection: &mut PgConnection, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(connection)
        .await
        .with_context(|| statements.chars().take(200).collect::<String>())?;
    Ok(())
}
