//! Producers behind a pooler.

use anyhow::Result;
use postrider::Changed;
use postrider::producer::{sqlx as with_sqlx, tokio_postgres as with_tokio_postgres};
use postrider_testkit::PgBouncer;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::JoinSet;

use super::{EVERYTHING, client, committed, event, everything};
use crate::support;

const PRODUCERS: usize = 6;
const ROUNDS: usize = 5;

/// Two server connections for all clients: each transaction may meet a session that somebody else has used.
#[tokio::test]
async fn fault_28_producers_work_through_pgbouncer() -> Result<()> {
    let database = support::database().await;
    let pooler = PgBouncer::start(database.server(), 2).await?;
    let url = pooler.url(&database);
    let options: PgConnectOptions = url.parse()?;
    let uncached = options.clone().statement_cache_capacity(0);
    let pools = [
        PgPoolOptions::new().connect_with(options).await?,
        PgPoolOptions::new().connect_with(uncached).await?,
    ];

    let mut producers = JoinSet::new();
    for pool in pools.iter().cycle().take(PRODUCERS) {
        let (pool, url) = (pool.clone(), url.clone());
        producers.spawn(async move {
            let mut client = client(&url).await?;
            for _ in 0..ROUNDS {
                with_sqlx::with_events(&pool, async |tx| {
                    everything(tx).await?;
                    anyhow::Ok(Changed::new((), [event("done", 1)]))
                })
                .await?;
                with_tokio_postgres::with_events(&mut client, async |tx| {
                    everything(tx).await?;
                    anyhow::Ok(Changed::new((), [event("done", 1)]))
                })
                .await?;
            }
            anyhow::Ok(())
        });
    }
    for result in producers.join_all().await {
        result?;
    }

    let transactions = PRODUCERS * ROUNDS * 2;
    let rows = committed(&database).await?;
    assert_eq!(rows.len(), transactions * (EVERYTHING.len() + 1));
    // They are emitted before their transaction sets a context: any header would be somebody else's.
    let paid: Vec<_> = rows.iter().filter(|row| row.r#type == "order.paid").collect();
    assert_eq!(paid.len(), transactions);
    assert!(paid.iter().all(|row| row.headers.is_none()));
    Ok(())
}
