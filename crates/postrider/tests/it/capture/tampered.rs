//! Triggers and functions that somebody has changed by hand are found, told of, and put right.

use postrider::capture::{self, State, Table};

use super::{captured, execute, types};

const HAND: &str = "drop trigger \"00_postrider\" on orders; create trigger \"00_postrider\"";

#[tokio::test]
async fn what_was_changed_by_hand_is_found_and_put_right() {
    let function = "execute function postrider_capture.capture_public_orders(); alter table orders enable always trigger \"00_postrider\"";
    let changes: Vec<(String, State, &str)> = vec![
        (format!("{HAND} after insert on orders for each row {function}"), State::Disabled, "does not fire for every change"),
        (
            format!("{HAND} after insert or delete or update of n on orders for each row {function}"),
            State::Disabled,
            "does not fire for every change",
        ),
        (
            format!("{HAND} after insert or update or delete on orders for each row when (false) {function}"),
            State::Disabled,
            "does not fire for every change",
        ),
        (
            format!("{HAND} before insert or update or delete on orders for each row {function}"),
            State::Disabled,
            "does not fire for every change",
        ),
        (
            "drop trigger \"00_postrider\" on orders;
             create constraint trigger \"00_postrider\" after insert or update or delete on orders deferrable initially deferred for each row
             execute function postrider_capture.capture_public_orders(); alter table orders enable always trigger \"00_postrider\""
                .to_owned(),
            State::Disabled,
            "does not fire for every change",
        ),
        ("drop trigger \"00_postrider\" on orders".to_owned(), State::Missing, "\"00_postrider\" is gone"),
        (
            "alter function postrider_capture.capture_public_orders() security invoker".to_owned(),
            State::Outdated,
            "the rights",
        ),
        (
            "alter function postrider_capture.capture_public_orders() reset search_path".to_owned(),
            State::Outdated,
            "search path",
        ),
        (
            "alter function postrider_capture.capture_public_orders() owner to pg_monitor".to_owned(),
            State::Outdated,
            "the owner",
        ),
        (
            "alter trigger \"00_postrider\" on orders rename to \"z\"\"z\"".to_owned(),
            State::Missing,
            "the trigger \"z\"\"z\" records every change once more",
        ),
        (
            "create trigger zz after insert on orders for each row execute function postrider_capture.capture_public_orders()".to_owned(),
            State::Outdated,
            "the trigger \"zz\" records every change once more",
        ),
    ];
    let declared = [Table::new("public.orders", "order")];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, n int)", &declared).await;
    for (changed, state, note) in changes {
        execute(&mut connection, &changed).await;
        let plan = capture::plan(&mut connection, &declared).await.unwrap();
        assert_eq!(plan.tables.len(), 1, "{changed}: {plan:?}");
        assert_eq!(plan.tables[0].state, state, "{changed}");
        assert!(plan.tables[0].notes.iter().any(|found| found.contains(note)), "{changed}: {plan:?}");
        let alarms = capture::sweep(&mut connection, &declared).await.unwrap();
        assert_eq!(alarms.len(), 1, "{changed}");
        capture::apply(&mut connection, &declared, false).await.unwrap();
        assert!(capture::plan(&mut connection, &declared).await.unwrap().is_done(), "{changed}");
        execute(
            &mut connection,
            "insert into orders values (1); update orders set id = 2; delete from orders",
        )
        .await;
        assert_eq!(
            types(&mut connection).await,
            ["order.created", "order.updated", "order.deleted"],
            "{changed}"
        );
    }
}

/// On a table that is not declared it is an orphan, whatever it is called.
#[tokio::test]
async fn a_trigger_under_another_name_is_an_orphan_where_nothing_is_declared() {
    let declared = [Table::new("public.orders", "order")];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key)", &declared).await;
    execute(&mut connection, "alter trigger \"00_postrider\" on orders rename to zz").await;
    let plan = capture::plan(&mut connection, &[]).await.unwrap();
    assert_eq!(plan.tables.iter().map(|table| table.state).collect::<Vec<_>>(), [State::Orphaned; 2]);
    capture::apply(&mut connection, &[], true).await.unwrap();
    assert!(capture::plan(&mut connection, &[]).await.unwrap().tables.is_empty());
}
