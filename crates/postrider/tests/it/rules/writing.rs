//! The rules of writing.

use super::Hand;
use crate::support::{PATIENCE, database, run};

/// A statement that lists the two columns the other way round and dawdles between them. With a plain default the seq is taken
/// long before the xid: a reader passes it, and bounds what it passed by a younger xid of its own.
#[tokio::test]
async fn the_xid_is_taken_before_the_seq() {
    async fn script(plain_default: bool) -> usize {
        let database = database().await;
        let mut admin = database.connect().await.unwrap();
        run(
            &mut admin,
            "create function dawdle() returns text language plpgsql as $$
             begin perform pg_advisory_xact_lock_shared(7); return 'dawdled'; end $$",
        )
        .await;
        if plain_default {
            run(&mut admin, "alter table postrider.events alter seq set default nextval('postrider.seq')")
                .await;
        }
        let mut reader = Hand::open(&database).await;
        // The first draw and every 32nd take an xid to log it; those between do not.
        run(&mut admin, "select nextval('postrider.seq'); select pg_advisory_lock(7)").await;
        let mut writer = database.connect().await.unwrap();
        let writing = tokio::spawn(async move {
            run(
                &mut writer,
                "insert into postrider.events (seq, type, xid, slot, lane, id, payload) values
                 (default, dawdle(), default, 0, 0, gen_random_uuid(), '{}'),
                 (default, dawdle(), default, 0, 0, gen_random_uuid(), '{}')",
            )
            .await;
        });
        let drawn = async {
            while !sqlx::query_scalar::<_, bool>("select pg_sequence_last_value('postrider.seq') > 1")
                .fetch_one(&mut admin)
                .await
                .unwrap()
            {}
        };
        tokio::time::timeout(PATIENCE, drawn).await.expect("no seq was drawn");
        assert_eq!(reader.look().await, [""; 0]);
        reader.settle().await;
        reader.resume().await;
        run(&mut admin, "select pg_advisory_unlock(7)").await;
        writing.await.unwrap();
        reader.look_until_quiet().await.len()
    }
    assert_eq!(script(false).await, 2);
    assert_eq!(script(true).await, 1, "the first row is lost with a plain nextval");
}
