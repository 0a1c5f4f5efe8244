//! A user's `for all tables` publication takes our tables along, and refuses to update one without a primary key.

use std::time::Duration;

use postrider::log::rebase::{self, Alive};
use postrider::log::ring::{self, Turn};
use postrider::log::{Retention, sink};
use postrider_testkit::Version;

use super::fails;
use crate::support::{database_of, emit, next, open, read_types, reading, run};

#[tokio::test]
async fn a_publication_for_all_tables_breaks_nothing() {
    for version in [Version::V14, Version::V18] {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        run(
            &mut connection,
            "create table public.no_key (n integer); insert into public.no_key values (1);
             create publication everything for all tables",
        )
        .await;
        // It is in force.
        let complaint = fails(&mut connection, "update public.no_key set n = 2").await;
        assert_eq!(complaint.code, "55000", "{}", complaint.message);

        // Heartbeat, lease, settling, waking.
        let mut reader = open(&database, reading("test")).await;
        emit(&mut connection, "first", "k").await;
        assert_eq!(read_types(&mut reader, 1).await, ["first"]);
        let (batch, ()) = tokio::join!(next(&mut reader), async {
            while !sqlx::query_scalar::<_, bool>(
                "select coalesce(pg_sequence_last_value('postrider.armed'), 0) > 0",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap()
            {}
            emit(&mut connection, "second", "k").await;
        });
        reader.settle(&batch).await.unwrap();
        // Handing over to a second reader, and taking over from one that vanished.
        let second = open(&database, reading("test")).await;
        drop(reader);
        second.close().await.unwrap();

        // Both rings.
        let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
        assert_eq!(ring::turn(&mut connection, at_once).await.unwrap(), Turn::To(1), "{version}");
        assert_eq!(ring::turn(&mut connection, at_once).await.unwrap(), Turn::To(2), "{version}");
        assert_eq!(ring::turn_progress_beyond(&mut connection, 0).await.unwrap(), Some(1), "{version}");

        // A rebase updates events, which have no key at all, and leaves the tables as they were.
        emit(&mut connection, "third", "k").await;
        run(&mut connection, "update postrider.identity set system_identifier = 7").await;
        rebase::apply(&mut connection, Alive::Overrule).await.unwrap();
        let changed: i64 = sqlx::query_scalar(
            "select count(*) from pg_class where relnamespace = 'postrider'::regnamespace and relreplident <> 'd' and relkind = 'r'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(changed, 0);
        assert!(sink::forget(&mut connection, "test").await.unwrap());
    }
}
