//! The demo, as a newcomer runs it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::arguments::Arguments;
use crate::run;
use crate::screen::Screen;

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The relay at work is killed after a second; the other one takes over when the lease has run out.
#[test]
fn a_killed_relay_loses_nothing() {
    let paper = Paper::default();
    let arguments =
        Arguments { end: Some(Duration::from_secs(2)), kill: Some(Duration::from_secs(1)), with: Vec::new() };
    let report = run(&arguments, Screen::new(Box::new(paper.clone()), false)).unwrap();
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(report.is_faithful() && report.committed > 20, "{report}\n{text}");
    // What a newcomer is to see: the way to write, to look and to kill, and that nothing was lost. Colours are for terminals.
    for wanted in [
        "insert into issues (title) values",
        "postrider status --watch",
        "\n$ kill -9 ",
        "SIGKILL",
        ", lost 0, ",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
}

/// With brokers, each has every event by its own word, and everything ends.
#[cfg(all(feature = "nats", feature = "redis"))]
#[test]
fn brokers_get_every_event() {
    let paper = Paper::default();
    let with = vec![crate::brokers::Kind::Nats, crate::brokers::Kind::Redis];
    // Long enough for a line of the second.
    let arguments = Arguments { end: Some(Duration::from_secs(3)), kill: None, with };
    let report = run(&arguments, Screen::new(Box::new(paper.clone()), false)).unwrap();
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    assert!(report.is_faithful() && report.committed > 5, "{report}\n{text}");
    for wanted in
        ["redis-cli -p ", "/jsz?streams", "waiting: nats ", "\nredis      has ", "\nnats       has "]
    {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
}
