//! No row is sent twice because something was renewed, none is taken for another, and nothing of the table is in the way.

use postrider::capture::State;
use postrider::outbox::{self, Columns, Error, Mode, Outbox, Preset};
use postrider_testkit::Version;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::tables::insert;
use super::{count, declared, execute, keep, keeper, read, with_table};
use crate::support::{database, database_of, open, reading};

const EVENTS: &str = "select count(*) from postrider.events";

fn mapped(mode: Mode, columns: Columns) -> Outbox {
    let named = |name: &str| Some(name.to_owned());
    let columns = Columns { id: named("id"), r#type: named("kind"), payload: named("body"), ..columns };
    Outbox { mode, stale_after: std::time::Duration::ZERO, ..Outbox::mapped("public.outbox", columns) }
}

async fn headers(connection: &mut PgConnection) -> Value {
    let headers: Option<String> =
        sqlx::query_scalar("select headers::text from postrider.events order by seq desc limit 1")
            .fetch_one(connection)
            .await
            .unwrap();
    serde_json::from_str(&headers.unwrap_or_else(|| "null".to_owned())).unwrap()
}

/// Nothing in a row tells that it was taken: all that are there are taken once, and whatever is renewed later takes none.
#[tokio::test]
async fn rows_that_cannot_be_marked_are_taken_once() {
    let (_database, mut connection) = with_table(Preset::Debezium).await;
    let declared = [declared(Preset::Debezium, Mode::Trigger)];
    insert(&mut connection, Preset::Debezium, 1, "k").await;
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    insert(&mut connection, Preset::Debezium, 2, "k").await;
    for changed in [
        "alter table outbox add trace text",
        "alter table outbox disable trigger user",
        "drop trigger \"00_postrider_outbox\" on outbox",
        "drop function postrider_capture.append_public_outbox cascade",
    ] {
        execute(&mut connection, changed).await;
        let plan = outbox::apply(&mut connection, &declared, false).await.unwrap();
        assert_ne!(plan.tables[0].state, State::Installed, "{changed}");
        assert!(
            !plan.tables[0].notes.iter().any(|note| note.contains("are not sent")),
            "{changed}: {plan:?}"
        );
        assert_eq!(count(&mut connection, EVENTS).await, 2, "{changed}");
        assert_eq!(
            count(&mut connection, "select count(*) from outbox").await,
            2,
            "{changed}: by trigger no row goes"
        );
    }
    insert(&mut connection, Preset::Debezium, 3, "k").await;
    assert_eq!(count(&mut connection, EVENTS).await, 3);
    // Given back and adopted anew, it begins from the beginning, as documented.
    outbox::apply(&mut connection, &[], true).await.unwrap();
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    assert_eq!(count(&mut connection, EVENTS).await, 6);
}

/// A claim alone marks a row too; attempts alone do not.
#[tokio::test]
async fn a_table_without_a_sent_column_is_not_sent_again() {
    const TABLE: &str = "create table outbox (id int primary key, kind text, body json, claimed timestamptz, attempts int, last_error text);
        insert into outbox values (1, 't', '{}')";
    let named = |name: &str| Some(name.to_owned());
    let claimed = Columns { claimed: named("claimed"), ..Columns::default() };
    let tried =
        Columns { attempts: named("attempts"), last_error: named("last_error"), ..Columns::default() };
    for columns in [claimed.clone(), tried.clone(), Columns { claimed: named("claimed"), ..tried.clone() }] {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        execute(&mut connection, TABLE).await;
        let declared = mapped(Mode::Trigger, columns.clone());
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        execute(&mut connection, "insert into outbox values (2, 't', '{}')").await;
        if columns.claimed.is_some() {
            assert_eq!(count(&mut connection, "select count(*) from outbox where claimed is null").await, 0);
        }
        let reader = open(&database, reading("one")).await;
        let mut keeper = keeper(&mut connection, &declared).await;
        keep(&mut keeper, &mut connection).await;
        execute(&mut connection, "delete from postrider.adopted; alter table outbox add trace text").await;
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        assert!(outbox::plan(&mut connection, std::slice::from_ref(&declared)).await.unwrap().is_done());
        assert_eq!(count(&mut connection, EVENTS).await, 2, "{columns:?}");
        reader.close().await.unwrap();
    }
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, TABLE).await;
    let refused = outbox::plan(&mut connection, &[mapped(Mode::Poll, tried)]).await.unwrap_err();
    assert!(matches!(refused, Error::NoMark { .. }), "{refused}");
    let declared = mapped(Mode::Poll, claimed);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut keeper = keeper(&mut connection, &declared).await;
    for _ in 0..3 {
        keep(&mut keeper, &mut connection).await;
    }
    assert_eq!(count(&mut connection, EVENTS).await, 1);
}

/// A row under the id of one that is on its way is another row.
#[tokio::test]
async fn a_row_that_comes_under_the_id_of_another_is_sent_too() {
    for mode in [Mode::Poll, Mode::Trigger] {
        let (database, mut connection) = with_table(Preset::OutboxTopic).await;
        let declared = declared(Preset::OutboxTopic, mode);
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        let mut reader = open(&database, reading("one")).await;
        let mut keeper = keeper(&mut connection, &declared).await;
        insert(&mut connection, Preset::OutboxTopic, 1, "k").await;
        keep(&mut keeper, &mut connection).await;
        execute(&mut connection, "truncate outbox restart identity").await;
        insert(&mut connection, Preset::OutboxTopic, 2, "k").await;
        assert_eq!(count(&mut connection, "select id from outbox").await, 1, "{mode:?}");
        if mode == Mode::Poll {
            // The first is read and settled before the second is moved.
            read(&mut reader, 1).await;
        }
        keep(&mut keeper, &mut connection).await;
        let unread = if mode == Mode::Poll { 1 } else { 2 };
        let unsent = "select count(*) from outbox where published_at is null";
        assert_eq!(count(&mut connection, unsent).await, 1, "{mode:?}: nobody has it");
        let records = read(&mut reader, unread).await;
        assert_eq!(super::tables::number(&records.last().unwrap().payload), 2, "{mode:?}");
        keep(&mut keeper, &mut connection).await;
        assert_eq!(count(&mut connection, unsent).await, 0, "{mode:?}");
        assert_eq!(count(&mut connection, EVENTS).await, 2, "{mode:?}");
        reader.close().await.unwrap();
    }
}

/// A trigger or a function that somebody has changed by hand does not count as installed.
#[tokio::test]
async fn what_was_changed_by_hand_is_outdated() {
    let (_database, mut connection) = with_table(Preset::Plane).await;
    let declared = [declared(Preset::Plane, Mode::Trigger)];
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    let anew = |how: &str| {
        let [moment, condition] = [how.split('|').next().unwrap(), how.split('|').nth(1).unwrap_or("")];
        format!(
            "drop trigger \"00_postrider_outbox\" on outbox; create trigger \"00_postrider_outbox\" {moment} on outbox for each row {condition}
             execute function postrider_capture.append_public_outbox(); alter table outbox enable always trigger \"00_postrider_outbox\""
        )
    };
    execute(&mut connection, "create role nobody_at_all").await;
    for changed in [
        anew("after insert|when (false)"),
        anew("before insert"),
        anew("after update"),
        "alter trigger \"00_postrider_outbox\" on outbox rename to zz".to_owned(),
        "alter function postrider_capture.append_public_outbox() security invoker".to_owned(),
        "alter function postrider_capture.append_public_outbox() reset search_path".to_owned(),
        "alter function postrider_capture.append_public_outbox() owner to nobody_at_all".to_owned(),
        "alter function postrider_capture.misfits_public_outbox() security invoker".to_owned(),
        "alter function postrider_capture.keep_public_outbox reset search_path".to_owned(),
        "alter function postrider_capture.keep_public_outbox owner to nobody_at_all".to_owned(),
    ] {
        execute(&mut connection, "delete from postrider.events; delete from outbox").await;
        execute(&mut connection, &changed).await;
        let alarms = outbox::alarms(&mut connection, &declared).await.unwrap();
        assert_eq!(alarms.len(), 1, "{changed}");
        outbox::apply(&mut connection, &declared, false).await.unwrap();
        assert!(outbox::plan(&mut connection, &declared).await.unwrap().is_done(), "{changed}");
        assert_eq!(outbox::alarms(&mut connection, &declared).await.unwrap(), [], "{changed}");
        insert(&mut connection, Preset::Plane, 1, "k").await;
        assert_eq!(count(&mut connection, EVENTS).await, 1, "{changed}");
    }
    execute(&mut connection, "drop role nobody_at_all").await;
}

/// What is there was taken by a trigger, and was not by a relay: from one mode to the other nothing is taken twice or left out.
#[tokio::test]
async fn rows_that_cannot_be_marked_are_taken_once_whatever_the_mode_becomes() {
    let (_database, mut connection) = with_table(Preset::Debezium).await;
    let [trigger, poll] = [Mode::Trigger, Mode::Poll].map(|mode| [declared(Preset::Debezium, mode)]);
    outbox::apply(&mut connection, &trigger, false).await.unwrap();
    insert(&mut connection, Preset::Debezium, 1, "k").await;
    let plan = outbox::plan(&mut connection, &poll).await.unwrap();
    let notes = &plan.tables[0].notes;
    assert!(notes.iter().any(|note| note.starts_with("1 rows were taken by the trigger")), "{notes:?}");
    let refused = outbox::apply(&mut connection, &poll, false).await.unwrap_err();
    assert!(refused.to_string().contains("by polling they would be taken again"), "{refused}");
    execute(&mut connection, "delete from outbox").await;
    outbox::apply(&mut connection, &poll, false).await.unwrap();
    assert!(outbox::plan(&mut connection, &poll).await.unwrap().is_done());
    // No relay comes to it before there is a trigger again.
    insert(&mut connection, Preset::Debezium, 2, "k").await;
    outbox::apply(&mut connection, &trigger, false).await.unwrap();
    insert(&mut connection, Preset::Debezium, 3, "k").await;
    assert_eq!(count(&mut connection, EVENTS).await, 3);
    assert_eq!(
        count(&mut connection, "select count(distinct source_id) from postrider.events").await,
        3,
        "each once"
    );
}

/// Words that PL/pgSQL reserves, and keys whose text depends on the session.
#[tokio::test]
async fn names_and_settings_are_in_nobodys_way() {
    for mode in [Mode::Trigger, Mode::Poll] {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        execute(
            &mut connection,
            "create table outbox (id int primary key, kind text, body json, \"begin\" timestamptz, \"loop\" timestamptz, \"by\" int, \"if\" text, \"while\" date)",
        )
        .await;
        let named = |name: &str| Some(name.to_owned());
        let declared =
            mapped(mode, Columns { key: named("begin"), sent: named("loop"), ..Columns::default() });
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        for (n, style) in ["ISO", "SQL, DMY", "German"].into_iter().enumerate() {
            execute(
                &mut connection,
                &format!(
                    "set datestyle = '{style}'; set timezone = 'Asia/Tokyo';
                     insert into outbox values ({n}, 't', '{{}}', '2026-01-05 00:00:00+00', null, 1, 'x', '2026-02-03')"
                ),
            )
            .await;
            if mode == Mode::Poll {
                let mut keeper = keeper(&mut connection, &declared).await;
                keep(&mut keeper, &mut connection).await;
                keeper.close(&mut connection).await.unwrap();
            }
        }
        let keys: Vec<String> = sqlx::query_scalar("select distinct key from postrider.events")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(keys, ["2026-01-05 00:00:00+00"], "{mode:?}");
        assert_eq!(headers(&mut connection).await, json!({"by": 1, "if": "x", "while": "2026-02-03"}));
        assert_eq!(count(&mut connection, EVENTS).await, 3, "{mode:?}");
    }
}

/// A column that was sent as a header goes, or is called otherwise: no insert fails for that.
#[tokio::test]
async fn a_header_whose_column_goes_fails_no_insert() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table outbox (id int primary key, kind text, body json, trace text, span text)",
    )
    .await;
    let named = |name: &str| Some(name.to_owned());
    let declared = mapped(Mode::Trigger, Columns { id_header: named("n"), ..Columns::default() });
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for (changed, values, expected) in [
        ("", "1, 't', '{}', 'a', 'b'", json!({"trace": "a", "span": "b", "n": "1"})),
        ("alter table outbox drop trace", "2, 't', '{}', 'b'", json!({"span": "b", "n": "2"})),
        ("alter table outbox rename span to part", "3, 't', '{}', 'b'", json!({"part": "b", "n": "3"})),
        ("alter table outbox alter part type int using 7", "4, 't', '{}', 8", json!({"part": 8, "n": "4"})),
        ("alter table outbox add more text", "5, 't', '{}', null, 'x'", json!({"more": "x", "n": "5"})),
    ] {
        execute(&mut connection, changed).await;
        execute(&mut connection, &format!("insert into outbox values ({values})")).await;
        assert_eq!(headers(&mut connection).await, expected, "{changed}");
    }
}

/// What is computed when it is read is null in a trigger: events have the value all the same, as those of rows that were there before.
#[tokio::test]
async fn virtual_columns_have_their_values_by_trigger_too() {
    let database = database_of(Version::V18).await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table outbox (id int primary key, body json, note text, kind text generated always as (body ->> 'kind'),
             \"key\" text generated always as (body ->> 'key'), region text generated always as (upper(note)));
         insert into outbox values (1, '{\"kind\": \"paid\", \"key\": 7}', 'eu')",
    )
    .await;
    let declared = mapped(Mode::Trigger, Columns { key: Some("key".to_owned()), ..Columns::default() });
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    execute(&mut connection, "insert into outbox select 2, body, note from outbox").await;
    let told: Vec<String> = sqlx::query_scalar(
        "select concat_ws(' ', type, key, headers ->> 'note', headers ->> 'region') from postrider.events order by seq",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(told, ["paid 7 eu EU"; 2]);
    // What would have to be computed of a column that goes is no header until apply, and no reason to fail.
    execute(
        &mut connection,
        "alter table outbox rename note to remark; insert into outbox select 3, body, remark from outbox where id = 1",
    )
    .await;
    assert_eq!(headers(&mut connection).await, json!({"remark": "eu"}));
    outbox::apply(&mut connection, &[declared], false).await.unwrap();
    execute(&mut connection, "insert into outbox select 4, body, remark from outbox where id = 1").await;
    assert_eq!(headers(&mut connection).await, json!({"remark": "eu", "region": "EU"}));
}

/// Row security hides rows from their own table's owner, as who they are moved and marked: that is an alarm, with what mends it.
#[tokio::test]
async fn row_security_in_the_way_is_an_alarm() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let owner = format!("{}_owner", database.name());
    execute(&mut connection, &format!("create role \"{owner}\"; alter table outbox owner to \"{owner}\""))
        .await;
    let declared = [declared(Preset::OutboxTopic, Mode::Trigger)];
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    assert_eq!(outbox::alarms(&mut connection, &declared).await.unwrap(), []);
    execute(&mut connection, "alter table outbox enable row level security").await;
    assert_eq!(outbox::alarms(&mut connection, &declared).await.unwrap(), [], "it does not bind the owner");
    execute(&mut connection, "alter table outbox force row level security").await;
    let alarms = outbox::alarms(&mut connection, &declared).await.unwrap();
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    let remedy = alarms[0].reason.split_once(": create policy").unwrap().1;
    execute(&mut connection, &format!("create policy{remedy}")).await;
    assert_eq!(outbox::alarms(&mut connection, &declared).await.unwrap(), []);
    assert!(outbox::plan(&mut connection, &declared).await.unwrap().tables[0].notes.is_empty());
    execute(&mut connection, &format!("drop owned by \"{owner}\" cascade; drop role \"{owner}\"")).await;
}
