//! Whether whoever installs may, and whether what is installed will: asked before anything is done, with the remedy.

use sqlx::PgConnection;

use super::declaration::Table;
use super::failure::{Error, Result};
use super::shape::{ParentShape, Shape};

/// A partition of a declared table that is not the table owner's: its name, whose it is, and who asks.
pub(super) type Strange = (String, String, String);

/// The first, where whoever asks has not the rights of its owner. One that has its trigger already is in nobody's way.
pub(super) async fn strange_partition(
    connection: &mut PgConnection,
    tables: &[Table],
) -> Result<Option<Strange>> {
    let names: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
    Ok(sqlx::query_as(
        "select format('%I.%I, a partition of %s,', n.nspname, c.relname, d.name), pg_get_userbyid(c.relowner)::text, current_user::text
         from unnest($1::text[]) d (name) cross join pg_partition_tree(postrider.named(d.name)::regclass) t
         join pg_class c on c.oid = t.relid join pg_namespace n on n.oid = c.relnamespace
         where t.level > 0 and not pg_has_role(c.relowner, 'member')
         order by 1 limit 1",
    )
    .bind(names)
    .fetch_optional(connection)
    .await?)
}

/// What a statement was refused for: where a right is missing, that on such a partition.
pub(super) fn explained(error: sqlx::Error, strange: Option<&Strange>) -> Error {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    let is_denied = code.is_some_and(|code| code == "42501");
    match strange {
        Some((table, owner, user)) if is_denied => {
            Error::NotTheOwner { table: table.clone(), owner: owner.clone(), user: user.clone() }
        }
        _ => error.into(),
    }
}

/// Refuses, with what it takes, what the server would refuse in the middle.
pub(super) async fn check(connection: &mut PgConnection, tables: &[Table]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let refused: Option<(String, String)> = sqlx::query_as(
        "select current_user::text, format('select postrider.allow_capture(%L)', current_user)
         -- In this order: without the first, the names of the others may not be asked for.
         where not case when has_schema_privilege('postrider', 'usage') and has_schema_privilege('postrider_capture', 'usage')
                 and has_schema_privilege('postrider_capture', 'create')
             then has_table_privilege('postrider.capture_failures', 'select')
                 and has_function_privilege('postrider.let_record(regclass, text, json)', 'execute')
             else false end",
    )
    .fetch_optional(&mut *connection)
    .await?;
    if let Some((user, statement)) = refused {
        return Err(Error::Rights {
            user,
            missing: "may not install triggers of ours".to_owned(),
            statement,
        });
    }
    for table in tables {
        let shape = Shape::of(connection, table).await?;
        let strange: Option<(String, String)> = sqlx::query_as(
            "select pg_get_userbyid(relowner)::text, current_user::text from pg_class
             where oid = $1::bigint::oid and not pg_has_role(relowner, 'member')",
        )
        .bind(shape.oid)
        .fetch_optional(&mut *connection)
        .await?;
        if let Some((owner, user)) = strange {
            return Err(Error::NotTheOwner { table: table.name.clone(), owner, user });
        }
        if let Some(parent) = &shape.parent {
            let hidden: bool = sqlx::query_scalar(
                "select exists (select from pg_class p join pg_class c on c.oid = $2::bigint::oid join pg_roles r on r.oid = c.relowner
                 where p.oid = $1::bigint::oid and p.relrowsecurity and not r.rolsuper and not r.rolbypassrls
                   and (p.relforcerowsecurity or not pg_has_role(c.relowner, p.relowner, 'usage')))",
            )
            .bind(parent.oid)
            .bind(shape.oid)
            .fetch_one(&mut *connection)
            .await?;
            if hidden {
                let (table, parent) = (table.name.clone(), parent.name.clone());
                return Err(Error::Hidden { table, parent });
            }
            check_parent(connection, table, &shape, parent).await?;
        }
    }
    Ok(())
}

/// Otherwise every write of the child would fail: its trigger reads whole rows of the parent, with the rights of the child's owner.
async fn check_parent(
    connection: &mut PgConnection,
    table: &Table,
    shape: &Shape,
    parent: &ParentShape,
) -> Result<()> {
    let lacking: Option<(String, String)> = sqlx::query_as(
        "select pg_get_userbyid(c.relowner)::text,
                format('grant usage on schema %1$I to %3$I; grant select on %1$I.%2$I to %3$I', n.nspname, p.relname, pg_get_userbyid(c.relowner))
         from pg_class c, pg_class p join pg_namespace n on n.oid = p.relnamespace
         where c.oid = $1::bigint::oid and p.oid = $2::bigint::oid
           and (not has_schema_privilege(c.relowner, n.oid, 'usage')
                or exists (select from pg_attribute a where a.attrelid = p.oid and a.attnum > 0 and not a.attisdropped
                           and not has_column_privilege(c.relowner, p.oid, a.attnum, 'select')))",
    )
    .bind(shape.oid)
    .bind(parent.oid)
    .fetch_optional(connection)
    .await?;
    lacking.map_or(Ok(()), |(owner, statement)| {
        let (table, parent) = (table.name.clone(), parent.name.clone());
        Err(Error::Unreadable { table, parent, owner, statement })
    })
}
