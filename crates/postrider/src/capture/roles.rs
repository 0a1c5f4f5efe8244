//! The roles that relays run as.

use sqlx::{PgConnection, Row};

/// A role that relays run as.
pub(crate) struct Role {
    pub(crate) name: String,
    /// Quoted.
    pub(crate) ident: String,
}

pub(crate) async fn relay_roles(connection: &mut PgConnection) -> sqlx::Result<Vec<Role>> {
    let rows = sqlx::query(include_str!("sql/roles.sql")).fetch_all(connection).await?;
    rows.iter().map(|row| Ok(Role { name: row.try_get("role")?, ident: row.try_get("ident")? })).collect()
}
