//! The demo, as a newcomer runs it.

use std::time::Duration;

use crate::arguments::Arguments;
use crate::run;

/// The relay at work is killed after a second; the other one takes over when the lease has run out.
#[test]
fn a_killed_relay_loses_nothing() {
    let arguments = Arguments { end: Some(Duration::from_secs(2)), kill: Some(Duration::from_secs(1)) };
    let report = run(&arguments).unwrap();
    assert!(report.is_faithful() && report.committed > 50, "{report}");
}
