//! The sink `file`.

use anyhow::{Context as _, Result, bail};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::file::{FileConfig, FileSink};
use postrider_relay::{Sink, Unavailable};
use postrider_testkit::conformance::{Control, Door, Subject, Test, Way, examine};
use uuid::Uuid;

use crate::scratch::Scratch;

struct File(Scratch);

impl Subject for File {
    fn open<'a>(&'a self, _way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink: Box<dyn Sink> = Box::new(FileSink::open(FileConfig::new(self.0.join("events"))).await?);
            Ok(sink)
        })
    }

    fn upstream(&self, _door: Door) -> Option<String> {
        None
    }

    fn destination(&self) -> String {
        String::new()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async {
            let text = std::fs::read_to_string(self.0.join("events"))?;
            let id = |line: &str| -> Result<Uuid> {
                let line: serde_json::Value = serde_json::from_str(line)?;
                Ok(line["id"].as_str().context("a line without an id")?.parse()?)
            };
            text.lines().map(id).collect()
        })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { bail!("a file has no server for {what:?}") })
    }

    fn oversize(&self) -> usize {
        0
    }

    fn unroutable(&self) -> String {
        String::new()
    }

    fn exempt(&self, test: Test) -> Option<&'static str> {
        match test {
            Test::OrderInsideBatches | Test::CleanClose => None,
            Test::OrderAcrossReconnects => Some("a file has no connection that could break"),
            Test::ConfirmedByTheServer | Test::LostConfirmations => Some(
                "the system call that writes is the confirmation; disks that are full or gone are in `file_sink`",
            ),
            Test::DeadlineOfItsOwn => {
                Some("no local disk can be frozen here; the thread that writes is waited for 30 s")
            }
            Test::KilledServer => Some("there is no server; relays that are killed are in `kills`"),
            Test::Oversize => Some("a line may have any length"),
            Test::Unroutable => Some("a file is its own destination"),
            Test::BoundedMemory => {
                Some("nothing can keep a batch from being written but an error, which is returned at once")
            }
            Test::BadCredentials => Some("the rights of a file are the system's"),
            Test::BadTls => Some("there is no network"),
        }
    }
}

#[tokio::test]
async fn file_keeps_the_contract() {
    let verdicts = examine(&File(Scratch::new())).await;
    verdicts.assert_passed();
    assert_eq!(verdicts.exempt().len(), Test::ALL.len() - 2);
}
