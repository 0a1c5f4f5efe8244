//! Captured and adopted tables together.

use postrider::capture::Table;
use postrider::declared;
use postrider::outbox::{Mode, Outbox, Preset};

use crate::outbox::{count, execute, with_table};

/// What cannot be done of the one leaves nothing of the other.
#[tokio::test]
async fn everything_that_is_declared_is_applied_or_nothing() {
    const OURS: &str = "select (select count(*) from pg_trigger where not tgisinternal)
        + (select count(*) from pg_proc where pronamespace = 'postrider_capture'::regnamespace)
        + (select count(*) from postrider.events)";
    let (_database, mut connection) = with_table(Preset::Plane).await;
    let connection = &mut connection;
    execute(connection, "create table public.orders (id int primary key, note text)").await;
    crate::outbox::tables::insert(connection, Preset::Plane, 1, "k").await;
    let outbox = Outbox { mode: Mode::Trigger, ..Outbox::new("public.outbox", Preset::Plane) };
    let outboxes = std::slice::from_ref(&outbox);
    let orders = Table::new("public.orders", "order");

    let both = Table::new("\"public\".outbox", "row");
    let refused = declared::plan(connection, std::slice::from_ref(&both), outboxes).await.unwrap_err();
    assert!(matches!(&refused, declared::Error::Both { table } if table == "public.outbox"), "{refused}");
    let refused = declared::apply(connection, &[both], outboxes, false).await.unwrap_err();
    assert!(matches!(refused, declared::Error::Both { .. }), "{refused}");
    assert_eq!(count(connection, OURS).await, 0);

    let wrong = Table { omit: vec!["nothing".to_owned()], ..orders.clone() };
    let refused = declared::apply(connection, &[wrong], outboxes, false).await.unwrap_err();
    assert!(matches!(refused, declared::Error::Table(_)), "{refused}");
    assert_eq!(count(connection, OURS).await, 0, "nothing of the outbox table");

    execute(connection, "update outbox set claimed_at = now()").await;
    let refused =
        declared::apply(connection, std::slice::from_ref(&orders), outboxes, false).await.unwrap_err();
    assert!(matches!(refused, declared::Error::Outbox(_)), "{refused}");
    assert_eq!(count(connection, OURS).await, 0, "nothing of the captured table");

    execute(connection, "update outbox set claimed_at = null").await;
    let done = declared::apply(connection, std::slice::from_ref(&orders), outboxes, false).await.unwrap();
    let names: Vec<&str> = done.tables.iter().map(|table| table.table.as_str()).collect();
    assert_eq!(names, ["public.orders", "public.outbox"]);
    let again = declared::apply(connection, &[orders], outboxes, false).await.unwrap();
    assert!(again.is_done(), "{again:?}");
    assert_eq!(count(connection, "select count(*) from postrider.events").await, 1);
}
