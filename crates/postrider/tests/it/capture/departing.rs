//! Parents that go, or seem to: what their children's events are then.

use postrider::capture::{self, Backfill, OnFailure, Parent, Table};
use postrider_testkit::Version;

use super::owners::{Stage, drop_role};
use super::{captured, captured_on, execute, types};

fn tables(schema: &str) -> String {
    format!(
        "create table {schema}.cases (id int primary key, kind text);
         create table {schema}.items (id int primary key, case_id int, found boolean)"
    )
}

fn items(schema: &str) -> Table {
    Table {
        r#type: Some("coalesce(parent.kind, 'none')".to_owned()),
        parent: Some(Parent {
            table: format!("{schema}.cases"),
            column: "id".to_owned(),
            on: "case_id".to_owned(),
        }),
        ..Table::new(format!("{schema}.items"), "item")
    }
}

/// The triggers of a statement fire at its end, when all of its rows are gone.
#[tokio::test]
async fn a_statement_that_takes_parent_and_child_away_tells_the_childs_type() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, &tables("public"), &[items("public")]).await;
        for statement in [
            "with gone as (delete from items returning case_id) delete from cases where id in (select case_id from gone)",
            "with gone as (delete from cases returning id) delete from items where case_id in (select id from gone)",
        ] {
            execute(&mut connection, "insert into cases values (1, 'epic'); insert into items values (1, 1)")
                .await;
            execute(&mut connection, statement).await;
            assert_eq!(
                types(&mut connection).await,
                ["epic.created", "epic.deleted"],
                "{version}: {statement}"
            );
        }
    }
}

/// A deletion that another trigger calls off leaves a parent that is there, and is asked first.
#[tokio::test]
async fn a_parent_that_stays_is_as_it_is() {
    let (_database, mut connection) = captured(&tables("public"), &[items("public")]).await;
    execute(
        &mut connection,
        "create function public.stay() returns trigger language plpgsql as 'begin return null; end';
         create trigger stay before delete on cases for each row execute function public.stay();
         insert into cases values (1, 'epic')",
    )
    .await;
    execute(
        &mut connection,
        "begin; delete from cases; update cases set kind = 'story'; insert into items values (1, 1); commit",
    )
    .await;
    assert_eq!(types(&mut connection).await, ["story.created"]);
}

/// Where PL/pgSQL has a variable of that name.
#[tokio::test]
async fn a_column_called_found_says_nothing_of_the_parent() {
    let declared = Table {
        r#type: Some(
            "coalesce(parent.kind, 'none') || case when found then '.seen' else '.lost' end".to_owned(),
        ),
        ..items("public")
    };
    let (_database, mut connection) = captured(&tables("public"), std::slice::from_ref(&declared)).await;
    execute(
        &mut connection,
        "insert into cases values (1, 'epic'); insert into items values (1, 1, false), (2, 2, true)",
    )
    .await;
    assert_eq!(types(&mut connection).await, ["epic.lost.created", "none.seen.created"]);
    let (backfill, _) = Backfill::open(&mut connection, &declared, None).await.unwrap();
    assert!(backfill.page(&mut connection, 10).await.unwrap().is_done);
    assert_eq!(types(&mut connection).await, ["epic.lost.snapshot", "none.seen.snapshot"]);
}

/// With `on_failure: record` for all that hang on it, its deletion survives too. Of its children no event is made of a guess.
#[tokio::test]
async fn a_parent_that_cannot_be_remembered_goes_and_the_event_of_its_child_is_kept() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(&mut owner, &tables("app")).await;
    let declared = Table { on_failure: OnFailure::Record, ..items("app") };
    capture::apply(&mut admin, std::slice::from_ref(&declared), false).await.unwrap();
    execute(&mut owner, "insert into app.cases values (1, 'epic'); insert into app.items values (1, 1)")
        .await;
    assert_eq!(types(&mut admin).await, ["epic.created"]);
    execute(
        &mut admin,
        &format!("revoke insert (relation, field, key, departed) on postrider.departed from \"{role}\""),
    )
    .await;
    execute(&mut owner, "begin; delete from app.cases; delete from app.items; commit").await;
    assert_eq!(types(&mut admin).await, [""; 0]);
    let kept = capture::recapture(&mut admin, &declared).await.unwrap();
    assert_eq!((kept.writes, kept.refused.unwrap().sqlstate.as_str()), (0, "P0002"));
    execute(
        &mut admin,
        "update postrider.capture_failures set parent_row = '{\"id\": 1, \"kind\": \"epic\"}'",
    )
    .await;
    assert_eq!(capture::recapture(&mut admin, &declared).await.unwrap().writes, 1);
    assert_eq!(types(&mut admin).await, ["epic.deleted"]);
    drop_role(&mut admin, owner, &role).await;
}
