//! What the trigger function does at a TRUNCATE.

use super::declaration::{Table, Truncate};
use super::generate::literal;
use super::shape::Shape;
use super::waiting::truncate_waits;

/// Before everything else: whether it is any news, and allowed.
pub(super) fn first(table: &Table, shape: &Shape, is_trigger: bool) -> String {
    // Partitions that go with their table have their triggers fired too.
    let passed = if is_trigger && shape.partitioned {
        format!(
            "    if tg_op = 'TRUNCATE' and not postrider.is_truncated_alone(tg_relid, {}::regclass) then
        return null;
    end if;\n",
            literal(&shape.name)
        )
    } else {
        String::new()
    };
    let refused = if table.truncate == Truncate::Refuse {
        "    if tg_op = 'TRUNCATE' then
        raise exception using errcode = '55000',
            message = 'postrider: ' || tg_relid::regclass || ' is captured and cannot be truncated',
            hint = 'DELETE says which rows go; or declare truncate: event for it.';
    end if;\n"
    } else {
        ""
    };
    passed + refused
}

/// The event it is. Behind writes that still wait to be recorded it waits too: it must not overtake them.
pub(super) fn event(table: &Table, shape: &Shape, is_trigger: bool, context: &str, headers: &str) -> String {
    let waits = if is_trigger {
        format!(
            "    if tg_op <> 'TRUNCATE' then
        null;
    elsif {} then
        perform postrider.record_failure(tg_relid, tg_op, null, null, {context}, '55000', 'writes before it wait to be recorded');
    else\n",
            truncate_waits()
        )
    } else {
        "    if tg_op = 'TRUNCATE' then\n".to_owned()
    };
    let of_partition = if shape.partitioned {
        format!(
            "        if tg_relid <> {}::regclass then
            verbs := array['partition.truncated'];
            data := json_build_object('partition', tg_relid::regclass::text)::text;
        end if;\n",
            literal(&shape.name)
        )
    } else {
        String::new()
    };
    format!(
        "{waits}        verbs := array['truncated'];
        kind := {entity};
        data := null;
        headers := {headers};
{of_partition}    end if;\n",
        entity = literal(&table.entity),
    )
}
