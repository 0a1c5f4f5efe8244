//! A database with the schema of before.

use postrider::schema::{self, Install};
use postrider_testkit::{Template, Version, postgres};

use super::{drain, subscribe};
use crate::support::{emit, run};

/// As version 6 left it: what the receiving end needs comes with the next installation, and what was there stays.
#[tokio::test]
async fn installing_over_version_6_brings_the_receiving_end() {
    let server = postgres(Version::default()).await.unwrap();
    let database = server.database(&Template::empty()).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    schema::install(&mut connection, &Install::default()).await.unwrap();
    emit(&mut connection, "before", "k").await;
    run(
        &mut connection,
        "drop table postrider.inbox, postrider.inbox_ring, postrider.inbox_slots, postrider.retries cascade;
         drop sequence postrider.inbox_phase;
         alter table postrider.sinks drop column is_consumer cascade;
         do $$ declare gone regprocedure; begin
             for gone in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'postrider'::regnamespace and p.proname in (
                 'first_time', 'turn_inbox', 'refuse_inbox', 'subscribe', 'next_batch', 'finish_batch', 'give_up', 'postpone', 'open_batch',
                 'read_lane', 'find_consumer', 'younger_xid')
             loop execute format('drop function %s', gone); end loop;
         end $$;
         create or replace function postrider.schema_version() returns integer language sql immutable parallel safe as 'select 6'",
    )
    .await;
    let installed = schema::install(&mut connection, &Install::default()).await.unwrap();
    assert_eq!((installed.from, installed.to), (6, schema::NEWEST));
    subscribe(&mut connection, "c").await;
    assert_eq!(drain(&mut connection, "c", 10).await, ["before"]);
    run(&mut connection, "select postrider.first_time('c', 'x'), postrider.turn_inbox()").await;
}
