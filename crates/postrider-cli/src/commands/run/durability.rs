//! Whether the sinks keep what they confirm as well as they have to.

use postrider_relay::SinkSettings;

use crate::failure::Failure;

/// Asks those of which something is required. One that cannot be asked now is asked again before it gets anything.
pub(super) async fn require(sinks: &[SinkSettings]) -> Result<(), Failure> {
    let mut objections = Vec::new();
    for sink in sinks {
        if let Some(required) = sink.require_durability
            && let Ok(Some(durability)) = sink.target.durability().await
            && let Some(objection) = durability.objection(required)
        {
            objections.push(format!("the sink `{}` is not good enough: {objection}", sink.name));
        }
    }
    if objections.is_empty() { Ok(()) } else { Err(Failure::configuration(objections.join("\n"))) }
}
