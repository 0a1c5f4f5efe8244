//! What several benchmarks measure against, and what they say about the server.

use std::future::poll_fn;
use std::time::Instant;

use anyhow::{Result, ensure};
use sqlx::Connection as _;

use crate::{Database, PostgresServer};

/// Prints what the figures depend on.
pub async fn print_facts(server: &PostgresServer) -> Result<()> {
    let mut connection = server.connect().await?;
    let mut facts = Vec::new();
    for name in ["server_version", "fsync", "synchronous_commit", "shared_buffers"] {
        let value: String =
            sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(&mut connection).await?;
        facts.push(format!("{name} {value}"));
    }
    println!("PostgreSQL: {}; {} cores\n", facts.join(", "), std::thread::available_parallelism()?);
    Ok(())
}

/// Rows per second of a client that drains COPY of what a reader reads.
pub async fn copy_log(database: &Database, events: u32) -> Result<f64> {
    let begin = Instant::now();
    let mut connection = database.connect().await?;
    let mut rows = 0;
    {
        let mut stream = connection
            .copy_out_raw(
                "copy (select lane, seq, id, source_id, type, entity, key, tenant, payload, headers, created_at
                       from postrider.events order by seq) to stdout",
            )
            .await?;
        // One message is one row.
        while let Some(row) = poll_fn(|context| stream.as_mut().poll_next(context)).await {
            row?;
            rows += 1;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    connection.close().await?;
    ensure!(rows == events, "{rows} rows were copied, {events} are there");
    Ok(f64::from(events) / seconds)
}
