//! Names of queues. One needs no declaration, so a mistyped one is only a queue that nobody has heard of.

use postrider::jobs::admin;
use sqlx::PgConnection;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Refuses a name under which there is nothing, and says which there are.
pub(super) async fn check(connection: &mut PgConnection, name: &str) -> Result<(), Failure> {
    let known = admin::queues(connection).await?;
    if known.iter().any(|queue| queue == name) {
        return Ok(());
    }
    let names: Vec<String> = known.iter().take(20).map(|queue| output::plain(queue)).collect();
    let more = if known.len() > names.len() { ", and more" } else { "" };
    let there = if names.is_empty() {
        "there is none yet".to_owned()
    } else {
        format!("there are: {}{more}", names.join(", "))
    };
    let error = anyhow::anyhow!("there is no queue {name:?}; {there}");
    Err(Failure::new(Exit::Failed, error))
}
