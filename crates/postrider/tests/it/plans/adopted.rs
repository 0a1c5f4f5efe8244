//! Notes of adopted rows, and parked events beside them: tables that are empty when the server looks at them, and large when it matters. Plans
//! for nothing must be good for many, by a probe of an index for each row.

use postrider::log::session;
use postrider::outbox::{self, Mode, Preset};
use sqlx::AssertSqlSafe;

use super::{nodes, plan_of};
use crate::outbox::{declared, keeper, with_table};
use crate::support::{options, run};

/// The rows that a mover takes, as its function has it.
fn taken(body: &str) -> &str {
    let from = body.find("select o.* from").expect("it takes rows");
    &body[from..from + body[from..].find("limit $2").expect("so many")]
}

#[tokio::test]
async fn plans_for_no_notes_are_good_for_many() {
    const DUE: &str = include_str!("../../../src/outbox/sql/due.sql");
    const FREED: &str = include_str!("../../../src/outbox/sql/freed.sql");
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for vacuum in
        ["vacuum analyze outbox", "vacuum analyze postrider.adopted", "vacuum analyze postrider.parked"]
    {
        run(&mut connection, vacuum).await;
    }
    let body: String = sqlx::query_scalar("select prosrc from pg_proc where proname = 'move_public_outbox'")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let mut session = session::connect(&options(&database)).await.unwrap();
    for (name, statement) in [
        ("due", format!("prepare due (text, bigint, int, int, uuid[]) as {DUE} select from due")),
        ("freed", format!("prepare freed (text, bigint, int, int, uuid[]) as {FREED} select from freed")),
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut session)
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for (statement, probed) in [
        (taken(&body).to_owned(), &[("adopted", "source_id")][..]),
        ("execute due ('public.outbox', 1000, 1, 0, '{}')".to_owned(), &[("parked", "id")]),
        ("execute freed ('public.outbox', 1000, 1, 0, '{}')".to_owned(), &[("parked", "id")]),
    ] {
        let plan = plan_of(&mut session, &statement).await;
        for (table, column) in probed {
            let scans: Vec<_> = nodes(&plan)
                .into_iter()
                .filter(|node| node["Relation Name"] == *table && node["Node Type"] != "ModifyTable")
                .collect();
            assert!(!scans.is_empty(), "{table} in {plan:#}");
            for scan in scans {
                let condition = scan["Index Cond"].as_str().unwrap_or_default();
                assert!(
                    condition.contains(&format!("({column} = ")),
                    "{table} by {column}, in {statement}: {scan:#}"
                );
            }
        }
    }
}

/// A session's plans outlive what the tables held when it was new. Statements of whole sets have none that is kept.
#[tokio::test]
async fn sets_are_planned_for_what_is_there() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut session = session::connect(&options(&database)).await.unwrap();
    let mut keeper = keeper(&mut session, &declared).await;
    keeper.work(&mut session).await.unwrap();
    let kept: Vec<String> =
        sqlx::query_scalar("select statement from pg_prepared_statements where strpos(statement, $1) > 0")
            .bind("all_adopted")
            .fetch_all(&mut session)
            .await
            .unwrap();
    assert_eq!(kept, [""; 0]);
    let planned_once: Vec<String> = sqlx::query_scalar(
        "select proname::text from pg_proc
         where proname in ('move_public_outbox', 'keep_public_outbox') and not 'plan_cache_mode=force_custom_plan' = any (proconfig)",
    )
    .fetch_all(&mut session)
    .await
    .unwrap();
    assert_eq!(planned_once, [""; 0]);
}
