//! How long the inbox remembers: what cannot be kept is refused, and keeps nothing from turning where it stands already.

use std::time::Duration;

use postrider::inbox;

use crate::support::{database, run};

fn days(days: u64) -> Duration {
    Duration::from_hours(24 * days)
}

#[tokio::test]
async fn ids_are_remembered_for_a_hundred_years_at_most() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for too_long in [days(9_000_000), Duration::MAX] {
        let refused = inbox::keep(&mut connection, too_long).await.unwrap_err();
        assert!(refused.to_string().contains("100 years at most"), "{refused}");
    }
    inbox::keep(&mut connection, days(36_500)).await.unwrap();
    assert_eq!(inbox::turn(&mut connection, None).await.unwrap(), "young");
    // Written there by somebody himself: it turns all the same, and another time can be set.
    run(&mut connection, "update postrider.inbox_ring set retention = '9000000 days'").await;
    assert_eq!(inbox::turn(&mut connection, None).await.unwrap(), "young");
    inbox::keep(&mut connection, days(14)).await.unwrap();
    assert_eq!(inbox::retention(&mut connection).await.unwrap(), days(14));
}

#[tokio::test]
async fn a_longer_time_is_set_before_anything_is_forgotten_by_the_shorter_one() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // Due by a third of fourteen days, not by one of sixty.
    run(&mut connection, "update postrider.inbox_slots set opened_at = now() - interval '10 days'").await;
    inbox::keep(&mut connection, days(60)).await.unwrap();
    assert_eq!(inbox::turn(&mut connection, None).await.unwrap(), "young");
}

#[tokio::test]
async fn after_a_schema_only_restore_a_time_can_be_set() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "delete from postrider.inbox_ring; delete from postrider.inbox_slots").await;
    inbox::keep(&mut connection, days(30)).await.unwrap();
    assert_eq!(inbox::retention(&mut connection).await.unwrap(), days(30));
    assert_eq!(inbox::turn(&mut connection, None).await.unwrap(), "young");
}
