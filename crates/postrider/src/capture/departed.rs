//! Rows that went in a transaction, kept for the triggers of their children.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sqlx::PgConnection;

use super::generate::literal;
use super::shape::{Column, ParentShape};

/// Whether this transaction could not remember a row that went. Whoever sets it himself has his events kept.
pub(super) const HAS_FORGOTTEN: &str = "coalesce(current_setting('postrider.forgotten', true), '') = 'yes'";

/// Sweeps those of transactions that are over: only their own transaction has a use for them.
pub(crate) async fn forget_departed(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("delete from postrider.all_departed where xid < pg_snapshot_xmin(pg_current_snapshot())")
        .execute(connection)
        .await?;
    Ok(())
}

/// What a row that went is looked up by: the same for every value that equals the one in this column. Of most types that is the text.
pub(super) fn known_by(column: &Column, value: &str) -> String {
    match &column.hash {
        Some(hash) if !column.equality_is_identity => {
            format!("{hash}({value}{}, 0::bigint)::text", collation(column))
        }
        _ => format!("to_jsonb({value}) #>> '{{}}'"),
    }
}

/// What it takes that a value is compared as one of this column.
pub(super) fn collation(column: &Column) -> String {
    column.loose_collation.as_ref().map(|name| format!(" collate {name}")).unwrap_or_default()
}

/// The body of the function that a parent's trigger has: the row is kept by each of these columns.
///
/// If `survives`, a deletion whose row cannot be kept is none the worse for it, and the children's events are kept instead. That has
/// a price, a transaction below this one for each row.
pub(super) fn remember(parent: &ParentShape, columns: &BTreeSet<String>, survives: bool) -> String {
    let mut body = "\ndeclare\n    key text;\nbegin\n".to_owned();
    // One that gets such a column later is not asked for it before `apply`.
    let is_plain = !parent.columns.iter().any(|column| column.has_own_json);
    let row = if is_plain { "to_json(old)" } else { "postrider.row_json(old, tg_relid)" };
    let (before, behind) = if survives {
        (
            "begin\n        ",
            "\n    exception when others then\n        perform set_config('postrider.forgotten', 'yes', true);\n    end;",
        )
    } else {
        ("", "")
    };
    for column in parent.columns.iter().filter(|column| columns.contains(&column.name)) {
        let known_by = known_by(column, &format!("old.{}", column.ident));
        // Nobody's deletion fails for a column that has another name now: then the triggers of the children fail to find it as well, and
        // keep their events.
        let _ = writeln!(
            body,
            "    begin
        key := {known_by};
    exception when others then
        key := null;
    end;
    {before}perform postrider.keep_departed(tg_relid, {}, key, {row});{behind}",
            literal(&column.name)
        );
    }
    // Without it the row would stay.
    body.push_str("    return old;\nend\n");
    body
}
