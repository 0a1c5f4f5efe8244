//! Whether whoever installs may, and whether what is installed will: asked before anything is done, with the remedy.

use sqlx::PgConnection;

use super::declaration::Table;
use super::failure::{Error, Result};
use super::shape::Shape;

/// Refuses, with what it takes, what the server would refuse in the middle.
pub(super) async fn check(connection: &mut PgConnection, tables: &[Table]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let refused: Option<(String, String)> = sqlx::query_as(
        "select current_user::text, format('select postrider.allow_capture(%L)', current_user)
         -- In this order: without the first, the names of the others may not be asked for.
         where not case when has_schema_privilege('postrider', 'usage') and has_schema_privilege('postrider', 'create')
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
        }
    }
    Ok(())
}
