//! What waits to be published: a log for ours, an outbox for the poller.

use anyhow::Result;
use postrider::schema::{self, Install};
use postrider_testkit::{Database, PostgresServer, Template};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// About 500 bytes of payload, 10,000 keys.
const SAMPLE: &str = r#"
    'order.paid'::text as type, 'order-' || n as entity, 'customer-' || n % 10000 as key, 'tenant-' || n % 100 as tenant,
    ('{"order":' || n || ',"customer":"customer-' || n % 10000 || '","total":' || n % 9973 || ',"currency":"EUR","note":"'
        || repeat('x', 420) || '"}')::json as payload"#;

const OUTBOX: &str = "
    create table public.outbox (id bigserial primary key, event_id uuid not null default gen_random_uuid(), event_type text not null,
        key text not null, payload text not null, created_at timestamptz not null default now(), claimed_at timestamptz, processed_at timestamptz);
    create index outbox_waiting on public.outbox (id) where claimed_at is null and processed_at is null";

/// A log with events.
pub(crate) struct Backlog {
    pub(crate) database: Database,
}

impl Backlog {
    /// A new one, filled in one transaction.
    pub(crate) async fn fill(server: &PostgresServer, events: u32) -> Result<Self> {
        let database = empty(server).await?;
        let insert = format!(
            r#"insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload)
               select 0, (hashtextextended(e.key collate "C", 0) & (postrider.lanes() - 1))::smallint, gen_random_uuid(),
                      e.type, e.entity, e.key, e.tenant, e.payload
               from (select {SAMPLE} from generate_series(1, {events}) n) e"#
        );
        run(&database.url(), [insert.as_str(), "vacuum analyze", "checkpoint"]).await?;
        Ok(Self { database })
    }
}

/// A database with a log that has nothing in it.
pub(crate) async fn empty(server: &PostgresServer) -> Result<Database> {
    let template = Template::new("postrider_sinks", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    server.database(&template).await
}

/// An outbox with so many rows that wait, as the poller knows it.
pub(crate) fn outbox(rows: u32) -> Template {
    Template::new("postrider_sinks_outbox", move |url| async move {
        let fill = format!(
            "insert into public.outbox (event_type, key, payload)
             select e.type, e.key, e.payload::text from (select {SAMPLE} from generate_series(1, {rows}) n) e"
        );
        run(&url, [OUTBOX, fill.as_str(), "vacuum analyze", "checkpoint"]).await
    })
}

async fn run<const N: usize>(url: &str, statements: [&str; N]) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in statements {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(())
}
