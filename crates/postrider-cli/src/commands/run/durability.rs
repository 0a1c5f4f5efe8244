//! Whether the sinks keep what they confirm as well as they have to.

use std::time::Duration;

use postrider_relay::SinkSettings;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// A server that says nothing is no reason to start later, nor to keep a new configuration waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks those of which something is required, side by side. One that cannot be asked now is asked again before it gets anything.
pub(super) async fn require(sinks: &[SinkSettings]) -> Result<(), Failure> {
    let asked: JoinSet<Option<(usize, String)>> = sinks
        .iter()
        .cloned()
        .enumerate()
        .map(|(place, sink)| async move {
            let objection = tokio::time::timeout(PATIENCE, objection(&sink)).await.ok()??;
            Some((place, format!("the sink `{}` is not good enough: {objection}", sink.name)))
        })
        .collect();
    let mut objections: Vec<(usize, String)> = asked.join_all().await.into_iter().flatten().collect();
    objections.sort_unstable();
    let objections: Vec<String> = objections.into_iter().map(|(_, objection)| objection).collect();
    if objections.is_empty() { Ok(()) } else { Err(Failure::configuration(objections.join("\n"))) }
}

async fn objection(sink: &SinkSettings) -> Option<String> {
    let required = sink.require_durability?;
    let durability = sink.target.durability().await.ok()??;
    durability.objection(required)
}
