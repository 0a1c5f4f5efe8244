//! Removes databases behind the tests' backs: `drop` can neither wait nor fail.

use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// The server's address and the database's name.
type Job = (String, String);

/// Removes a database soon. What is left when the process ends goes with the server.
pub(super) fn later(server: String, database: String) {
    static JOBS: LazyLock<Option<Sender<Job>>> = LazyLock::new(|| {
        let (sender, receiver) = channel();
        // Without the thread databases stay until the server is removed, which is no reason to fail a test.
        std::thread::Builder::new().name("database removal".into()).spawn(|| work(receiver)).ok()?;
        Some(sender)
    });
    if let Some(jobs) = &*JOBS {
        let _ = jobs.send((server, database));
    }
}

fn work(jobs: Receiver<Job>) {
    // Its own runtime: that of the test is usually gone by now.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    for (server, database) in jobs {
        // A server that was stopped or is stuck takes its databases along when it is removed.
        let _ = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), remove(&server, &database)).await
        });
    }
}

async fn remove(server: &str, database: &str) -> Result<()> {
    let mut admin = PgConnection::connect(server).await?;
    admin.execute(AssertSqlSafe(format!(r#"drop database if exists "{database}" with (force)"#))).await?;
    admin.close().await?;
    Ok(())
}
