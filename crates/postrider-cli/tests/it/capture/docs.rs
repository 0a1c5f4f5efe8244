//! `docs/capture.md` is executed: its tables, its declaration, its writes and the events it says they make.

use super::File;
use crate::world::{ask, installed, run};

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capture.md")).unwrap()
}

/// The blocks of a language, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_issue_tracker_does_what_the_page_says() {
    let page = page();
    let [tables, writes] = &blocks(&page, "sql")[..] else { panic!("two blocks of SQL") };
    let database = installed().await;
    run(&database, tables).await;
    let file = File::new(&database, &blocks(&page, "yaml")[0]);
    file.run(&database, &["apply"]).expect(0);
    file.run(&database, &["plan"]).expect(0);
    run(&database, format!("set app.initiator_id = 'u7'; {writes}")).await;
    let lines = "select string_agg(format('%s  %s  %s', rpad(type, 25), key, payload -> 'previous_attributes'), E'\\n' order by seq) from postrider.events";
    assert_eq!(ask(&database, lines).await + "\n", blocks(&page, "text")[0]);
    let first = "select payload::jsonb || jsonb_build_object('headers', headers::jsonb) from postrider.events order by seq limit 1";
    let first: serde_json::Value = serde_json::from_str(&ask(&database, first).await).unwrap();
    assert_eq!(first["headers"], serde_json::json!({"project_id": 7, "initiator_id": "u7"}));
    assert_eq!(first["data"]["assignee_ids"], serde_json::json!([]));
    assert!(first["data"].get("description").is_none());
}

#[test]
fn zero_loss_is_on_the_first_screen() {
    let page = page();
    let first: String = page.lines().take(12).collect();
    assert!(first.contains("by default a write whose event cannot be recorded fails"), "{first}");
}
