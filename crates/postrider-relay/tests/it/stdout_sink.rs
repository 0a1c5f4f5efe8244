//! Lines on the standard output, here a pipe.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use postrider_relay::sinks::stdout::Stdout;
use postrider_relay::{Outcome, Preparer, Sink, UnavailableKind};

use crate::written::{message, order_paid, text, to_null, with_payload};

#[tokio::test]
async fn each_event_is_a_line_at_once() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut sink: Box<dyn Sink> = Box::new(Stdout::to(writer).unwrap());
    let mut preparer = Preparer::new(&to_null()).unwrap();
    let records = [order_paid(), with_payload("{\n \"a\":\r\n1}"), with_payload("\"x\\ny\"")];
    let batch: Vec<_> = records.iter().map(|record| message(&mut preparer, record)).collect();
    let mut lines = BufReader::new(reader).lines();
    for _ in 0..2 {
        let report = sink.deliver(&batch).await;
        assert!(report.unavailable.is_none());
        assert_eq!(report.outcomes, vec![Outcome::Delivered; 3]);
        for message in &batch {
            assert_eq!(lines.next().unwrap().unwrap(), text(message).replace(['\n', '\r'], " "));
        }
    }
    sink.close().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_has_gone_does_not_come_back() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut sink = Stdout::to(writer).unwrap();
    let record = order_paid();
    let batch = [message(&mut Preparer::new(&to_null()).unwrap(), &record)];
    for _ in 0..2 {
        let report = sink.deliver(&batch).await;
        assert_eq!(report.outcomes, [Outcome::NotSent]);
        assert_eq!(report.unavailable.unwrap().kind, UnavailableKind::Gone);
    }
}

#[tokio::test]
async fn what_is_not_open_for_writing_takes_nothing() {
    let mut sink = Stdout::to(File::open("/dev/null").unwrap()).unwrap();
    let record = order_paid();
    let batch = [message(&mut Preparer::new(&to_null()).unwrap(), &record)];
    let report = sink.deliver(&batch).await;
    assert_eq!(report.outcomes, [Outcome::NotSent]);
    assert_eq!(report.unavailable.unwrap().kind, UnavailableKind::Gone);
}

/// Takes some bytes, then refuses once.
struct Hiccup {
    room: usize,
    taken: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Write for Hiccup {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.room == 0 {
            self.room = usize::MAX;
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let count = bytes.len().min(self.room);
        self.room -= count;
        self.taken.lock().unwrap().extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn half_a_line_is_kept_apart_from_the_next() {
    let taken = std::sync::Arc::default();
    let mut sink = Stdout::to(Hiccup { room: 10, taken: std::sync::Arc::clone(&taken) }).unwrap();
    let record = order_paid();
    let batch = [message(&mut Preparer::new(&to_null()).unwrap(), &record)];
    assert_eq!(sink.deliver(&batch).await.unavailable.unwrap().kind, UnavailableKind::Full);
    assert!(sink.deliver(&batch).await.unavailable.is_none());
    let line = text(&batch[0]);
    assert_eq!(
        String::from_utf8(taken.lock().unwrap().clone()).unwrap(),
        format!("{}\n{line}\n", &line[..10])
    );
}
