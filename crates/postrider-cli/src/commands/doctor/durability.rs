//! What the confirmations of the sinks are worth.

use postrider_relay::{Durability, Grade, SinkSettings, Unavailable};

use super::check::Report;

const NAME: &str = "durability of sinks";

pub(super) async fn examine(sinks: &[SinkSettings], report: &mut Report) {
    for sink in sinks {
        match sink.target.durability().await {
            Ok(Some(durability)) => graded(sink, &durability, report),
            Ok(None) => {}
            Err(unavailable) => unknown(sink, &unavailable, report),
        }
    }
}

fn graded(sink: &SinkSettings, durability: &Durability, report: &mut Report) {
    let (name, grade) = (&sink.name, durability.grade());
    if let Some(objection) = sink.require_durability.and_then(|required| durability.objection(required)) {
        let remedy = "mend it there, or lower `require_durability`: the relay does not start like this";
        return report.bad(NAME, format!("{name}: {objection}"), remedy);
    }
    let detail = match durability.weaknesses.first() {
        None => format!("{name}: grade {grade}: {}", grade.means()),
        Some(worst) => format!("{name}: grade {grade}: {}", worst.row().what),
    };
    // Nobody takes standard output, or null, for a place to keep things.
    if grade <= Grade::B || matches!(sink.target.kind(), "stdout" | "null") {
        return report.ok(NAME, detail);
    }
    let remedies: Vec<&str> = durability.below(Grade::B).iter().map(|row| row.remedy).collect();
    report.warn(NAME, detail, remedies.join("; "));
}

fn unknown(sink: &SinkSettings, unavailable: &Unavailable, report: &mut Report) {
    let detail = format!("{}: it cannot be asked now: {unavailable}: {}", sink.name, unavailable.source);
    report.warn(NAME, detail, unavailable.kind.policy().advice);
}
