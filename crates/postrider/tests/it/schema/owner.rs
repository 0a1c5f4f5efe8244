//! An ordinary owner: no superuser, no extension, perhaps not even the right to create roles.

use postrider::log::{Error, Reader, ReaderOptions, Start};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, Template, Version, postgres};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{next, read_types};

/// An empty database that belongs to a new role with these attributes. Roles are named after the database, which is unique.
async fn owned(version: Version, attributes: &str) -> (Database, String) {
    let database = postgres(version).await.unwrap().database(&Template::empty()).await.unwrap();
    let owner = format!("{}_owner", database.name());
    let mut admin = database.connect().await.unwrap();
    let name = database.name();
    sqlx::raw_sql(AssertSqlSafe(format!(
        r#"create role "{owner}" login nosuperuser {attributes}; alter database "{name}" owner to "{owner}""#
    )))
    .execute(&mut admin)
    .await
    .unwrap();
    (database, owner)
}

async fn connect_as(database: &Database, role: &str) -> PgConnection {
    PgConnection::connect(&database.url_as(role)).await.unwrap()
}

/// Roles are the cluster's: what a test made must go, or the shared server keeps it.
async fn drop_roles(database: &Database, roles: &[String]) {
    let mut admin = database.connect().await.unwrap();
    for role in roles {
        let quoted: String =
            sqlx::query_scalar("select format('%I', $1)").bind(role).fetch_one(&mut admin).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!(
            "reassign owned by {quoted} to postgres; drop owned by {quoted} cascade; drop role {quoted}"
        )))
        .execute(&mut admin)
        .await
        .unwrap();
    }
}

fn with_roles(prefix: &str) -> Install {
    Install {
        emit_role: format!("{prefix}emit"),
        relay_role: format!("{prefix}relay"),
        consume_role: format!("{prefix}consume"),
        reader_role: format!("{prefix}reader"),
        ..Install::default()
    }
}

fn names(install: &Install) -> Vec<String> {
    [&install.emit_role, &install.relay_role, &install.consume_role, &install.reader_role]
        .map(Clone::clone)
        .to_vec()
}

#[tokio::test]
async fn creates_roles_if_it_may() {
    for version in [Version::V15, Version::V18] {
        let (database, owner) = owned(version, "createrole").await;
        let mut connection = connect_as(&database, &owner).await;
        let install = with_roles(&format!("{} ", database.name()));
        schema::install(&mut connection, &install).await.unwrap();
        schema::install(&mut connection, &install).await.unwrap();
        let extensions: Vec<String> = sqlx::query_scalar("select extname::text from pg_extension")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(extensions, ["plpgsql"]);
        sqlx::query("select postrider.emit('hello', '{}')").execute(&mut connection).await.unwrap();
        // The owner itself may read, as long as nobody gave it less.
        let options = ReaderOptions { start: Start::Earliest, ..ReaderOptions::new("test") };
        let mut reader = Reader::open(database.url_as(&owner).parse().unwrap(), options).await.unwrap();
        assert_eq!(read_types(&mut reader, 1).await, ["hello"]);
        reader.close().await.unwrap();
        drop(connection);
        drop_roles(&database, &[names(&install), vec![owner]].concat()).await;
    }
}

#[tokio::test]
async fn says_which_roles_are_missing_if_it_may_not_create_them() {
    let (database, owner) = owned(Version::default(), "nocreaterole").await;
    let mut connection = connect_as(&database, &owner).await;
    let install = with_roles(&format!("{} Missing \"", database.name()));
    let error = schema::install(&mut connection, &install).await.unwrap_err();
    let Error::Roles { user, statements, .. } = &error else { panic!("{error}") };
    assert_eq!(*user, owner);
    assert_eq!(statements.lines().count(), 4);
    assert!(error.to_string().contains("CREATEROLE"), "{error}");
    assert_eq!(schema::version(&mut connection).await.unwrap(), None, "nothing is half installed");
    // The statements are what somebody else needs to run, and then it works.
    sqlx::raw_sql(AssertSqlSafe(statements.clone()))
        .execute(&mut database.connect().await.unwrap())
        .await
        .unwrap();
    schema::install(&mut connection, &install).await.unwrap();
    drop(connection);
    drop_roles(&database, &[names(&install), vec![owner]].concat()).await;
}

/// Names are quoted by the server: what looks like SQL stays a name.
#[tokio::test]
async fn role_names_may_be_anything() {
    let (database, owner) = owned(Version::default(), "nocreaterole").await;
    let mut admin = database.connect().await.unwrap();
    let tag = database.name();
    let install = Install {
        emit_role: format!("{tag}; drop schema postrider cascade; --"),
        relay_role: format!("{tag} \"Relay\" $$ %I"),
        consume_role: format!("{tag}'s CONSUMER"),
        reader_role: format!("Ünser {tag}"),
        ..Install::default()
    };
    for role in names(&install) {
        let statement: String = sqlx::query_scalar("select format('create role %I login', $1)")
            .bind(role)
            .fetch_one(&mut admin)
            .await
            .unwrap();
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await.unwrap();
    }
    let mut connection = connect_as(&database, &owner).await;
    schema::install(&mut connection, &install).await.unwrap();
    let rights: Vec<bool> = sqlx::query_scalar(
        "select has_function_privilege(role, 'postrider.emit(text, json, text, text, text, json)', 'execute')
         from unnest($1::text[]) with ordinality as r (role, place) order by place",
    )
    .bind(names(&install))
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(rights, [true, false, true, false]);
    // The script for psql has the same names in it.
    sqlx::raw_sql(AssertSqlSafe(schema::script(&install))).execute(&mut connection).await.unwrap();
    sqlx::query("select postrider.emit('hello', '{}')").execute(&mut connection).await.unwrap();
    let mut options: sqlx::postgres::PgConnectOptions = database.url().parse().unwrap();
    options = options.username(&install.relay_role);
    let start = ReaderOptions { start: Start::Earliest, ..ReaderOptions::new("test") };
    let mut reader = Reader::open(options.into(), start).await.unwrap();
    assert_eq!(next(&mut reader).await.len(), 1);
    reader.close().await.unwrap();
    drop(connection);
    drop_roles(&database, &[names(&install), vec![owner]].concat()).await;
}

/// To be a member of a superuser is to be one: nobody is advised to make somebody that.
#[tokio::test]
async fn a_stranger_is_not_advised_to_become_a_superuser() {
    let (database, stranger) = owned(Version::default(), "nocreaterole").await;
    let mut admin = database.connect().await.unwrap();
    sqlx::raw_sql("create schema postrider").execute(&mut admin).await.unwrap();
    let mut connection = connect_as(&database, &stranger).await;
    let said = schema::install(&mut connection, &Install::default()).await.unwrap_err().to_string();
    assert!(!said.contains("grant"), "{said}");
    assert!(said.ends_with("which belongs to \"postgres\"; let that role run:\npostrider init"), "{said}");
    drop(connection);
    drop_roles(&database, &[stranger]).await;
}
