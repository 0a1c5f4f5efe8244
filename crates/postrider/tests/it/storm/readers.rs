//! Readers that live and readers that die.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postrider::log::{Error, Reader, Record};
use postrider_testkit::Receipts;
use rand::RngExt;

use super::Storm;
use crate::support::{options, reading};

/// How many events of a lane a reader takes at once: each of the first has another, and later ones any of these.
pub(super) const PAGES: [u32; 3] = [1, 3, 1000];

/// How long a reader waits before it asks whether the storm is over.
const GLANCE: Duration = Duration::from_millis(300);

/// One of several readers of a sink. It settles parts of what it was given, and now and then dies with the rest in hand.
pub(super) async fn mortal(storm: Arc<Storm>, receipts: Arc<Receipts>, number: u32) {
    let mut rng = storm.seed.for_task(1000 + u64::from(number)).rng();
    let mut reader = born(&storm, PAGES[number as usize]).await;
    while !storm.is_quiet() {
        let Ok(batch) = tokio::time::timeout(GLANCE, reader.next()).await else { continue };
        let batch = batch.unwrap();
        for record in batch.records() {
            receive(&receipts, record);
        }
        if rng.random_bool(0.05) {
            // What was read ahead and not taken is nobody's yet: only the batch in hand can come twice.
            storm.allowed_twice.fetch_add(batch.len(), Ordering::Relaxed);
            if rng.random_bool(0.2) {
                // Dead without a word: the lanes come free when the lease runs out. With every second death like that they lay idle
                // for most of the time.
                drop(reader);
            } else {
                let _ = reader.close().await;
            }
            storm.deaths.fetch_add(1, Ordering::Relaxed);
            // With another page: lanes that only ever met the smallest would keep the storm waiting.
            reader = born(&storm, PAGES[rng.random_range(0..PAGES.len())]).await;
            continue;
        }
        // In two steps, so that progress is stored at any point inside a page.
        let cut: f64 = rng.random_range(0.0..1.0);
        let first = |_, records: &[Record]| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let part = (records.len() as f64 * cut) as usize;
            part
        };
        let settled = match reader.settle_first(&batch, first).await {
            Ok(_) => reader.settle(&batch).await,
            failed => failed,
        };
        // Lanes that were taken over while this reader was too slow: their records come again.
        let twice = match settled {
            Ok(settled) => batch
                .lanes()
                .filter(|(lane, _)| settled.lost.contains(lane))
                .map(|(_, records)| records.len())
                .sum(),
            Err(Error::LeaseLost { .. } | Error::ConnectionLost { .. }) => batch.len(),
            Err(error) => panic!("{error}"),
        };
        storm.allowed_twice.fetch_add(twice, Ordering::Relaxed);
    }
}

/// The only reader of its sink: nothing may come twice.
pub(super) async fn steady(storm: Arc<Storm>, receipts: Arc<Receipts>) {
    let mut options = reading("steady");
    // On a busy machine a second without a heartbeat is not a death.
    options.lease = Duration::from_mins(1);
    let mut reader = Reader::open(self::options(&storm.database).into(), options).await.unwrap();
    while !storm.is_quiet() {
        let Ok(batch) = tokio::time::timeout(GLANCE, reader.next()).await else { continue };
        let batch = batch.unwrap();
        for record in batch.records() {
            receive(&receipts, record);
        }
        reader.settle(&batch).await.unwrap();
    }
}

async fn born(storm: &Storm, page: u32) -> Reader {
    let mut options = reading("mortal");
    options.page = page;
    // Long enough for a busy machine: they are to die when the dice say so.
    options.lease = Duration::from_secs(2);
    Reader::open(self::options(&storm.database).into(), options).await.unwrap()
}

/// All readers of a sink are one to the books. Whoever takes a lane over begins where all before is settled, thus
/// received: also over handovers, and over readers who have not noticed theirs, a key's first receipts are in order.
fn receive(receipts: &Receipts, record: &Record) {
    let n = record.payload.trim_start_matches("{\"n\" : ").trim_end_matches('}');
    receipts.record(0, record.id, record.key.as_deref().unwrap_or_default(), n.parse().unwrap());
}
