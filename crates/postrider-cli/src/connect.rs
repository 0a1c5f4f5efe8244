//! Finding and opening the database: `--database`, the configuration file, `DATABASE_URL` or the variables of libpq.

use std::env;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use postrider::log::{self, Servers};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions as _, PgConnection};

use crate::config::{self, Overrides, Source};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Without a limit of our own a host that swallows packets holds us for minutes.
const PATIENCE: Duration = Duration::from_secs(10);

/// One of these says that the libpq variables are meant. With none at all we would connect to whatever listens on this machine.
const VARIABLES: &[&str] = &["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER"];

/// What sqlx understands in the query of a URL, besides `options[…]`.
const UNDERSTOOD: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "target_session_attrs",
    "user",
];

/// What libpq understands and sqlx does not, and that URLs handed out by hosting companies contain.
const IGNORED: &[&str] = &[
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "sslsni",
    "tcp_user_timeout",
];

/// Which database a command works on. Not `Debug`: it may hold a password.
#[derive(Args)]
pub(crate) struct Target {
    /// The database, as postgres://USER@HOST:PORT/NAME
    ///
    /// Others on this machine can see the command line: a password is better kept in a variable, in PGPASSWORD or in ~/.pgpass.
    /// Several hosts, as HOST1:PORT1,HOST2:PORT2, are tried in their order, and the primary is taken.
    /// Without it, the file's `database` is taken, then `DATABASE_URL`, then PGHOST, PGPORT, PGDATABASE, PGUSER and their kin as psql does.
    // A plain string: a parser's complaint would repeat the value, with its password.
    #[arg(long, value_name = "URL")]
    database: Option<String>,

    #[command(flatten)]
    pub(crate) source: Source,
}

impl Target {
    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, Failure> {
        open(self.options()?).await
    }

    /// What the command line says in place of the file.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { database: self.database.clone(), ..Overrides::default() }
    }

    pub(crate) fn options(&self) -> Result<Servers, Failure> {
        let options = match self.database.as_deref() {
            Some(url) => options(Some(url)),
            None => config::database(&self.source),
        };
        // A slow statement is the server's to log; here it would drown the answer.
        Ok(options?.map(|options| options.application_name("postrider").disable_statement_logging()))
    }
}

/// Opens a connection, or says where to it could not be opened. No command needs plans that are compiled: they are large, over little
/// data, and compiling one takes longer than running it a hundred times.
pub(crate) async fn open(servers: Servers) -> Result<PgConnection, Failure> {
    match attempt(servers.clone().map(|options| options.options([("jit", "off")]))).await {
        // A pooler does not let settings through.
        Err(failure) if failure.to_string().contains("startup parameter") => attempt(servers).await,
        opened => opened,
    }
}

async fn attempt(servers: Servers) -> Result<PgConnection, Failure> {
    let place = describe(&servers);
    match tokio::time::timeout(PATIENCE, servers.connect()).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => {
            let (exit, error) = match error {
                log::Error::Database(error) => (Exit::of_connecting(&error), anyhow::Error::new(error)),
                error => (Exit::Unavailable, anyhow::Error::new(error)),
            };
            Err(Failure::new(exit, error.context(format!("cannot connect to {place}"))))
        }
        Err(_) => Err(Failure::new(
            Exit::Unavailable,
            anyhow::anyhow!("cannot connect to {place}: no answer within {} seconds", PATIENCE.as_secs()),
        )),
    }
}

/// What a URL says, or without one the variables of libpq.
pub(crate) fn options(url: Option<&str>) -> Result<Servers, Failure> {
    check_variables()?;
    let service = env::var("PGSERVICE").is_ok_and(|name| !name.is_empty());
    if service && url.is_none_or(|url| !is_complete(url)) {
        return Err(Failure::configuration(
            "the variable PGSERVICE is set, and service files are not read: the database would be another one than psql's; write its host \
             and its name into DATABASE_URL, or unset PGSERVICE and set PGHOST, PGDATABASE and so on",
        ));
    }
    if let Some(url) = url {
        let (url, ignored) = checked(url)?;
        for name in ignored {
            output::say(&format!("note: the connection parameter {name} is not supported and has no effect"));
        }
        return url
            .parse()
            .context(
                "the database URL cannot be read; in a user name or password, write @ : / ? # and % as %40 %3A %2F %3F %23 and %25",
            )
            .map_err(|error| Failure::new(Exit::Configuration, error));
    }
    if VARIABLES.iter().all(|name| env::var_os(name).is_none()) {
        return Err(Failure::configuration(
            "no database is given: set DATABASE_URL, pass --database postgres://USER@HOST:PORT/NAME, or set PGHOST, PGDATABASE and \
             so on as for psql",
        ));
    }
    Servers::from_env().map_err(|error| Failure::new(Exit::Configuration, error))
}

/// sqlx takes its default where one of these cannot be read: another server, or no encryption.
fn check_variables() -> Result<(), Failure> {
    let wrong = |name: &str, wanted: &str| {
        Err(Failure::configuration(format!("the variable {name} must be {wanted}")))
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    if env::var("PGPORT").is_ok_and(|ports| ports.is_empty() || !ports.split(',').all(is_port)) {
        return wrong("PGPORT", "a port, such as 5432, or one for each host of PGHOST, separated by commas");
    }
    if env::var("PGSSLMODE").is_ok_and(|mode| mode.parse::<PgSslMode>().is_err()) {
        return wrong("PGSSLMODE", "disable, allow, prefer, require, verify-ca or verify-full");
    }
    for name in ["PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY"] {
        if let Ok(path) = env::var(name) {
            check_file(&format!("the variable {name}"), &path)?;
        }
    }
    Ok(())
}

/// In URLs of databases: what the server's certificate is verified with, and what we show ourselves.
const FILES: &[&str] =
    &["ssl-ca", "ssl-cert", "ssl-key", "ssl-root-cert", "sslcert", "sslkey", "sslrootcert"];

/// sqlx says of a file that is not there that there is no such file, and not which one.
fn check_file(named_by: &str, path: &str) -> Result<(), Failure> {
    // The text itself in place of a path to it, or a path that is written with %.
    if path.is_empty() || path.trim_start().starts_with("-----BEGIN") || path.contains('%') {
        return Ok(());
    }
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::configuration(format!(
            "{named_by} names the file {path}, which cannot be read: {error}; put it there, or name the one that is meant"
        ))),
    }
}

/// Whether a URL says by itself where the database is: what libpq would take from a service file is what the URL leaves out.
fn is_complete(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = address.split_once('/').unwrap_or((address, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let says = |names: &[&str]| {
        query
            .split('&')
            .filter_map(|parameter| parameter.split_once('='))
            .any(|(name, _)| names.contains(&name))
    };
    (!host.is_empty() || says(&["host", "hostaddr"])) && (!database.is_empty() || says(&["dbname"]))
}

/// The URL without the parameters that have no effect here, and their names. What nobody knows is refused, as psql does: a mistyped
/// `sslmode` must not mean "no encryption".
fn checked(url: &str) -> Result<(String, Vec<&str>), Failure> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(Failure::configuration("the database URL must begin with postgres:// or postgresql://"));
    }
    if url.contains('#') {
        return Err(Failure::configuration("the database URL contains a #; write it as %23"));
    }
    let Some((address, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), Vec::new()));
    };
    let mut kept = Vec::new();
    let mut ignored = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if FILES.contains(&name) {
            check_file(&format!("{name} in the database URL"), value)?;
        }
        if UNDERSTOOD.contains(&name) || name.starts_with("options[") || name.starts_with("options%5B") {
            kept.push(parameter);
        } else if IGNORED.contains(&name) {
            ignored.push(name);
        } else if name == "service" {
            return Err(Failure::configuration(
                "the database URL names a service, and service files are not read: write the host and the name of the database into the URL",
            ));
        } else {
            // Not named if it could be the rest of a password with a bare `?` in it.
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            let named = if is_plain { format!(" {name}") } else { String::new() };
            return Err(Failure::configuration(format!(
                "the database URL has the unknown parameter{named} after its ?; known are {}",
                UNDERSTOOD.join(", ")
            )));
        }
    }
    Ok((format!("{address}?{}", kept.join("&")), ignored))
}

/// Those of them that are set.
pub(crate) fn variables() -> String {
    let set: Vec<&str> = VARIABLES.iter().copied().filter(|name| env::var_os(name).is_some()).collect();
    set.join(", ")
}

/// The address as it could be written, without the password and all that is not about where it leads to.
pub(crate) fn url(servers: &Servers) -> String {
    let encoded = |text: &str| -> String {
        let letter = |byte: u8| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        text.bytes().map(letter).collect()
    };
    let host = |options: &PgConnectOptions| {
        let host = match options.get_socket() {
            Some(socket) => encoded(&socket.to_string_lossy()),
            None if options.get_host().contains(':') => format!("[{}]", options.get_host()),
            None => encoded(options.get_host()),
        };
        format!("{host}:{}", options.get_port())
    };
    let hosts: Vec<String> = servers.each().iter().map(host).collect();
    let user = servers.last().get_username();
    let database = servers.last().get_database().unwrap_or(user);
    format!("postgres://{}@{}/{}", encoded(user), hosts.join(","), encoded(database))
}

/// Where it goes, without the password.
fn describe(servers: &Servers) -> String {
    let options = servers.last();
    let user = options.get_username();
    let database = options.get_database().unwrap_or(user);
    format!("database {database} at {servers} as {user}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_effect_are_taken_out_and_named() {
        let (url, ignored) =
            checked("postgres://h/db?sslmode=require&channel_binding=require&options[a]=b").unwrap();
        assert_eq!(url, "postgres://h/db?sslmode=require&options[a]=b");
        assert_eq!(ignored, ["channel_binding"]);
    }

    #[test]
    fn a_url_is_complete_with_a_host_and_a_database() {
        for url in [
            "postgres://h/db",
            "postgres://u:p%2F@h1,h2:1/db?sslmode=require",
            "postgres:///db?host=/run/pg",
            "postgres://h?dbname=d",
        ] {
            assert!(is_complete(url), "{url}");
        }
        for url in [
            "postgres://",
            "postgres://h",
            "postgres://h/",
            "postgres:///db",
            "postgres://u@/db",
            "postgres://h?user=u",
            "db",
        ] {
            assert!(!is_complete(url), "{url}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_there_is_named() {
        for name in FILES {
            let refused = checked(&format!("postgres://h/db?{name}=/no/such.pem")).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("/no/such.pem"), "{refused}");
            checked(&format!("postgres://h/db?{name}=-----BEGIN CERTIFICATE-----")).unwrap();
            checked(&format!("postgres://h/db?{name}=/dev/null")).unwrap();
        }
    }

    #[test]
    fn unknown_parameters_are_refused() {
        let refused = |url| checked(url).unwrap_err().to_string();
        assert!(refused("postgres://h/db?sslmod=require").contains("sslmod after"));
        assert!(!refused("postgres://u:12?canary@h/db").contains("canary"));
        assert!(refused("postgres://u:12#canary@h/db").contains("%23"));
        assert!(refused("mysql://h/db").contains("postgres://"));
    }
}
