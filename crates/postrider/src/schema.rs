//! The schema in the user's database: numbered migrations, what they install, and which versions this program works with.

use std::collections::BTreeSet;
use std::fmt::Write;

use sqlx::{Connection, PgConnection, Row};

use crate::log::error::{Error, Result};

/// Which versions of the schema this program can work with.
pub const OLDEST: i32 = 7;
/// The version that [`install`] brings a database to.
pub const NEWEST: i32 = 7;

const BEGIN: &str = include_str!("../migrations/begin.sql");
const KEEP: &str = include_str!("../migrations/keep.sql");
const ROLES: &str = include_str!("../migrations/roles.sql");
const GRANTS: &str = include_str!("../migrations/grants.sql");
const CURSORS: &str = include_str!("../migrations/0003_views.sql");
const CAPTURE: &str = include_str!("../migrations/0006_capture.sql");
const OUTBOX: &str = include_str!("../migrations/0006_outbox.sql");
const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("../migrations/0001_log.sql")),
    (2, include_str!("../migrations/0002_emit.sql")),
    (3, CURSORS),
    (4, include_str!("../migrations/0004_parking.sql")),
    (5, include_str!("../migrations/0005_views.sql")),
    (6, CAPTURE),
    (6, OUTBOX),
    // Again, where it was installed before: it was slow with many lanes.
    (7, CURSORS),
    // Again: what is kept knows its key, and a row its moment.
    (7, CAPTURE),
    (7, OUTBOX),
    (7, include_str!("../migrations/0007_inbox.sql")),
    (7, include_str!("../migrations/0007_consume.sql")),
    (7, include_str!("../migrations/0007_batches.sql")),
    (7, include_str!("../migrations/0007_jobs.sql")),
    (7, include_str!("../migrations/0007_jobs_enqueue.sql")),
    (7, include_str!("../migrations/0007_jobs_work.sql")),
    (7, include_str!("../migrations/0007_jobs_finish.sql")),
    (7, include_str!("../migrations/0007_jobs_tend.sql")),
    (7, include_str!("../migrations/0007_jobs_views.sql")),
    (7, include_str!("../migrations/0007_jobs_cron.sql")),
    (7, include_str!("../migrations/0007_attempts.sql")),
    (7, include_str!("../migrations/0007_where.sql")),
    (7, include_str!("../migrations/0007_capture_owners.sql")),
    (7, include_str!("../migrations/0007_capture_rights.sql")),
];
/// A function and not a row: it survives a schema-only dump, as does everything else that emitting needs.
const VERSION: &str = "create or replace function postrider.schema_version() returns integer language sql immutable parallel safe as 'select 7'";

/// What can be chosen when the schema is installed.
#[derive(Debug, Clone)]
pub struct Install {
    /// Into how many lanes keys are spread: a power of two, fixed by the first installation. `None` keeps what is there, or 16.
    pub lanes: Option<i32>,
    /// The largest payload that `emit` takes, in bytes. `None` keeps what is there, or 64 MiB.
    pub max_payload: Option<i64>,
    /// May only emit.
    pub emit_role: String,
    /// May do what a relay needs.
    pub relay_role: String,
    /// May emit and use the receiving end.
    pub consume_role: String,
    /// May see the views.
    pub reader_role: String,
}

impl Default for Install {
    fn default() -> Self {
        Self {
            lanes: None,
            max_payload: None,
            emit_role: "postrider_emit".to_owned(),
            relay_role: "postrider_relay".to_owned(),
            consume_role: "postrider_consume".to_owned(),
            reader_role: "postrider_reader".to_owned(),
        }
    }
}

impl Install {
    fn roles(&self) -> [&str; 4] {
        [&self.emit_role, &self.relay_role, &self.consume_role, &self.reader_role]
    }

    /// What the scripts read; an empty one keeps what is there or takes the default.
    fn settings(&self) -> [(&'static str, String); 7] {
        let or_empty = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
        [
            ("postrider.install.version", NEWEST.to_string()),
            ("postrider.install.lanes", or_empty(self.lanes.map(i64::from))),
            ("postrider.install.max_payload", or_empty(self.max_payload)),
            ("postrider.install.emit_role", self.emit_role.clone()),
            ("postrider.install.relay_role", self.relay_role.clone()),
            ("postrider.install.consume_role", self.consume_role.clone()),
            ("postrider.install.reader_role", self.reader_role.clone()),
        ]
    }
}

/// What [`install`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The version before; 0 if there was none.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// How many lanes the log has.
    pub lanes: i32,
    /// The roles that have rights now which they had not before.
    pub granted: Vec<String>,
}

/// Every right that somebody has been granted on something of ours.
const RIGHTS: &str = "select pg_get_userbyid(a.grantee)::text, format('%s on %s', a.privilege_type, o.name)
    from (select 'schema', nspacl from pg_namespace where oid = to_regnamespace('postrider')
          union all select relname::text, relacl from pg_class where relnamespace = to_regnamespace('postrider')
          union all select oid::regprocedure::text, proacl from pg_proc where pronamespace = to_regnamespace('postrider')) as o (name, acl)
    cross join aclexplode(o.acl) as a
    where a.grantee <> 0";

/// Installs or upgrades the schema in one transaction. Any number of installers may run at once.
pub async fn install(connection: &mut PgConnection, install: &Install) -> Result<Installed> {
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql(BEGIN).execute(&mut *transaction).await?;
    check_owner(&mut transaction).await?;
    let from = version(&mut transaction).await?.unwrap_or(0);
    if from > NEWEST {
        return Err(Error::SchemaVersion { found: from, oldest: OLDEST, newest: NEWEST });
    }
    if from > 0
        && let Some(wanted) = install.lanes
    {
        let found: i32 = sqlx::query_scalar("select postrider.lanes()").fetch_one(&mut *transaction).await?;
        if wanted != found {
            return Err(Error::Lanes { found, wanted });
        }
    }
    for (name, value) in install.settings() {
        sqlx::query("select set_config($1, $2, true)")
            .bind(name)
            .bind(value)
            .execute(&mut *transaction)
            .await?;
    }
    if from < NEWEST || install.max_payload.is_some() {
        check_may_create(&mut transaction).await?;
    }
    let before = rights(&mut transaction).await?;
    sqlx::raw_sql(KEEP).execute(&mut *transaction).await?;
    create_roles(&mut transaction, install).await?;
    for (number, text) in MIGRATIONS {
        // The functions are compiled with the payload's limit: running them again is how it is changed.
        if *number > from || install.max_payload.is_some() {
            sqlx::raw_sql(*text).execute(&mut *transaction).await?;
        }
    }
    sqlx::raw_sql(VERSION).execute(&mut *transaction).await?;
    sqlx::raw_sql(GRANTS).execute(&mut *transaction).await?;
    let lanes = sqlx::query_scalar("select postrider.lanes()").fetch_one(&mut *transaction).await?;
    let granted: BTreeSet<String> = rights(&mut transaction)
        .await?
        .difference(&before)
        .map(|(role, _)| role.clone())
        .filter(|role| install.roles().contains(&role.as_str()))
        .collect();
    transaction.commit().await?;
    Ok(Installed { from, to: NEWEST, lanes, granted: granted.into_iter().collect() })
}

async fn rights(connection: &mut PgConnection) -> Result<BTreeSet<(String, String)>> {
    Ok(sqlx::query_as(RIGHTS).fetch_all(connection).await?.into_iter().collect())
}

/// Refuses, with the remedy, what the server would refuse in the middle without one.
async fn check_owner(connection: &mut PgConnection) -> Result<()> {
    let stranger: Option<(String, String, bool, String)> = sqlx::query_as(
        "select current_user::text, o.rolname::text, o.rolsuper, format('grant %I to %I;', o.rolname, current_user)
         from pg_namespace n join pg_roles o on o.oid = n.nspowner
         where n.nspname = 'postrider' and not pg_has_role(n.nspowner, 'usage')",
    )
    .fetch_optional(connection)
    .await?;
    stranger.map_or(Ok(()), |(user, owner, is_superuser, statement)| {
        let missing = format!("has no rights on the schema postrider, which belongs to {owner:?}");
        // To be a member of a superuser is to be one: not for this.
        let (whom, statement) = if is_superuser {
            ("that role", "postrider init".to_owned())
        } else {
            ("an administrator, unless you can run `postrider init` as that role,", statement)
        };
        Err(Error::Rights { user, missing, whom: whom.to_owned(), statement })
    })
}

/// As [`check_owner`], for whoever is going to create something.
async fn check_may_create(connection: &mut PgConnection) -> Result<()> {
    let refused: Option<(String, String)> = sqlx::query_as(
        "select current_user::text, format('grant create on database %I to %I;', current_database(), current_user)
         where not has_database_privilege(current_database(), 'create')",
    )
    .fetch_optional(connection)
    .await?;
    refused.map_or(Ok(()), |(user, statement)| {
        let missing = "may not create a schema in this database".to_owned();
        Err(Error::Rights { user, missing, whom: "the database's owner".to_owned(), statement })
    })
}

async fn create_roles(connection: &mut PgConnection, install: &Install) -> Result<()> {
    let missing = sqlx::query(
        "select wanted, format('create role %I nologin;', wanted) from unnest($1::text[]) wanted
         where not exists (select from pg_roles where rolname = wanted::name)",
    )
    .bind(install.roles().as_slice())
    .fetch_all(&mut *connection)
    .await?;
    if missing.is_empty() {
        return Ok(());
    }
    let (user, allowed): (String, bool) = sqlx::query_as(
        "select rolname::text, rolsuper or rolcreaterole from pg_roles where rolname = current_user",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !allowed {
        let column = |index: usize| -> Result<Vec<String>> {
            missing.iter().map(|row| row.try_get(index).map_err(Error::from)).collect()
        };
        let names = column(0)?;
        let plural = if names.len() == 1 { "role {} is" } else { "roles {} are" };
        return Err(Error::Roles {
            missing: plural.replace("{}", &names.join(", ")),
            user,
            statements: column(1)?.join("\n"),
        });
    }
    sqlx::raw_sql(ROLES).execute(connection).await?;
    Ok(())
}

/// The installed version, if any. A superuser does not ask in the schema of somebody who is none: its functions would run with all rights.
pub async fn version(connection: &mut PgConnection) -> Result<Option<i32>> {
    let (is_installed, stranger): (bool, Option<String>) = sqlx::query_as(
        "select to_regprocedure('postrider.schema_version()') is not null,
                (select pg_get_userbyid(n.nspowner)::text from pg_namespace n
                 where n.nspname = 'postrider' and (select r.rolsuper from pg_roles r where r.rolname = current_user)
                   and not (select r.rolsuper from pg_roles r where r.oid = n.nspowner))",
    )
    .fetch_one(&mut *connection)
    .await?;
    // Before anything in the schema is called.
    if let Some(owner) = stranger {
        return Err(Error::Superuser { owner });
    }
    if !is_installed {
        return Ok(None);
    }
    Ok(Some(sqlx::query_scalar("select postrider.schema_version()").fetch_one(connection).await?))
}

/// Refuses a schema this program does not know.
pub async fn check_version(connection: &mut PgConnection) -> Result<()> {
    match version(connection).await? {
        None => Err(Error::NotInstalled),
        Some(found) if found < OLDEST || found > NEWEST => {
            Err(Error::SchemaVersion { found, oldest: OLDEST, newest: NEWEST })
        }
        Some(_) => Ok(()),
    }
}

/// The whole installation as one script for psql or another migration tool.
pub fn script(install: &Install) -> String {
    let mut script =
        String::from("-- The postrider schema. May be run again: what is there is kept.\nbegin;\n\n");
    for (name, value) in install.settings() {
        // A string literal of the server's own kind: only the quote has to be doubled.
        let _ = writeln!(script, "set local {name} = '{}';", value.replace('\'', "''"));
    }
    for text in [BEGIN, KEEP, ROLES].into_iter().chain(MIGRATIONS.iter().map(|(_, text)| *text)) {
        script += "\n";
        script += text;
    }
    script += "\n";
    script += VERSION;
    script += ";\n\n";
    script += GRANTS;
    script += "\ncommit;\n";
    script
}
