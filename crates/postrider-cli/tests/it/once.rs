//! `postrider run --once` beside other relays.

use crate::world::{ask, emit, installed, on, open_reader};

/// Its lanes may be another relay's for ever.
#[tokio::test(flavor = "multi_thread")]
async fn once_says_who_holds_the_lanes_and_ends_after_its_patience() {
    let database = installed().await;
    // Files have one relay at a time, and this one delivers nothing.
    let mut reader = open_reader(&database, "file").await;
    let file = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
    let place = format!("file:{}", file.display());
    let once = ["run", "--once", "--patience", "1s", "--to", &place];
    on(&database, &once).expect(0);

    emit(&database, "order.paid", "k").await;
    let end = on(&database, &once).expect(69);
    assert!(
        end.stderr.contains("sink \"file\"") && end.stderr.contains("relay 1 holds them"),
        "{}",
        end.stderr
    );
    let batch = reader.next().await.unwrap();
    reader.settle(&batch).await.unwrap();
    on(&database, &once).expect(0);

    // One that can be shared, of which half is ours.
    let _shared = open_reader(&database, "null").await;
    for key in 0..40 {
        emit(&database, "order.paid", &key.to_string()).await;
    }
    let end = on(&database, &["run", "--once", "--patience", "1s", "--to", "null"]).expect(69);
    assert!(end.stderr.contains("relay 1 holds them"), "{}", end.stderr);
    let owed = "select count(*) from postrider.events e join postrider.cursors c using (lane) where c.sink = 'null' and e.seq > c.position";
    assert_ne!(ask(&database, owed).await, "0");
    let _ = std::fs::remove_file(file);
}
