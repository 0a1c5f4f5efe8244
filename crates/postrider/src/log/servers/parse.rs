//! From a URL with lists of hosts and ports to one URL per host.

use std::env;
use std::fmt::Write as _;
use std::str::FromStr;

use sqlx::Error;

use super::{Servers, Wanted};

impl FromStr for Servers {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let (urls, wanted) =
            expand(url, |name| env::var(name).ok()).map_err(|why| Error::Configuration(why.into()))?;
        let each = urls.iter().map(|url| url.parse()).collect::<Result<_, Error>>()?;
        Ok(Self::new(each, wanted))
    }
}

/// The URL of each server, and which of them will do. What is wrong is said without repeating any of the URL.
fn expand(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(Vec<String>, Wanted), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok((vec![url.to_owned()], Wanted::Any));
    };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match address.find('/') {
        Some(slash) => address.split_at(slash),
        None => (address, ""),
    };
    let (login, hosts) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();

    let mut lists = Lists::default();
    let mut attributes = variable("PGTARGETSESSIONATTRS");
    let mut kept = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("target_session_attrs", value)) => attributes = Some(value.to_owned()),
            Some((name @ ("host" | "hostaddr" | "port"), value)) => {
                lists.add(name, &value.replace("%2C", ","));
            }
            _ => kept.push(parameter),
        }
    }
    // sqlx reads these variables where the URL says nothing, and takes a list for one strange name.
    let ambient =
        |name: &str| variable(name).filter(|value| value.contains(',')).map(|value| encoded(&value));
    if hosts == [""] && !lists.has("host") && !lists.has("hostaddr") {
        for (variable, name) in [("PGHOSTADDR", "hostaddr"), ("PGHOST", "host")] {
            if let Some(value) = ambient(variable) {
                lists.add(name, &value);
            }
        }
    }
    if !lists.has("port")
        && hosts.iter().all(|host| !has_port(host))
        && let Some(value) = ambient("PGPORT")
    {
        lists.add("port", &value);
    }

    let count = lists.0.iter().map(|(_, values)| values.len()).chain([hosts.len()]).max().unwrap_or(1);
    if !lists
        .0
        .iter()
        .map(|(_, values)| values.len())
        .chain([hosts.len()])
        .all(|length| length == 1 || length == count)
    {
        return Err(
            "the lists of hosts and ports must be of the same length, or one port for all hosts".to_owned()
        );
    }
    let urls = (0..count).map(|place| {
        let host = if hosts.len() == 1 { hosts[0] } else { hosts[place] };
        let mut url = format!("{scheme}://{login}{host}{path}?{}", kept.join("&"));
        for (name, values) in &lists.0 {
            let value = if values.len() == 1 { &values[0] } else { &values[place] };
            // As in libpq an empty one stands for the default.
            if !value.is_empty() {
                let _ = write!(url, "&{name}={value}");
            }
        }
        url
    });
    Ok((urls.collect(), wanted(attributes.as_deref(), count)?))
}

fn wanted(attributes: Option<&str>, count: usize) -> Result<Wanted, String> {
    match attributes {
        None | Some("") => Ok(if count > 1 { Wanted::Primary } else { Wanted::Any }),
        Some("any") => Ok(Wanted::Any),
        Some("read-write" | "primary") => Ok(Wanted::Primary),
        Some("read-only" | "standby" | "prefer-standby") => {
            Err("target_session_attrs must be read-write, primary or any: the log can only be used on the primary".to_owned())
        }
        Some(_) => Err("target_session_attrs must be read-write, primary or any".to_owned()),
    }
}

/// The parameters of the query that may be lists, in the order in which they came.
#[derive(Default)]
struct Lists(Vec<(&'static str, Vec<String>)>);

impl Lists {
    fn add(&mut self, name: &str, value: &str) {
        let name = match name {
            "host" => "host",
            "hostaddr" => "hostaddr",
            _ => "port",
        };
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, value.split(',').map(str::to_owned).collect()));
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| *known == name)
    }
}

/// `h:5432` or `[::1]:5432`.
fn has_port(host: &str) -> bool {
    host.rfind(']').map_or(host, |bracket| &host[bracket..]).contains(':')
}

/// As a value in a query; commas stay.
fn encoded(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~,/:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(url: &str, variables: &[(&str, &str)]) -> Result<(Vec<String>, Wanted), String> {
        expand(url, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[track_caller]
    fn check(url: &str, variables: &[(&str, &str)], wanted: Wanted, urls: &[&str]) {
        let (found, which) = expanded(url, variables).unwrap();
        assert_eq!((found, which), (urls.iter().map(|url| (*url).to_owned()).collect(), wanted));
    }

    #[test]
    fn every_host_becomes_a_url_of_its_own() {
        check("postgres://h/db", &[], Wanted::Any, &["postgres://h/db?"]);
        check(
            "postgres://me:a,b%40@h1,h2:5433,[::1]:5434/db?sslmode=verify-full",
            &[],
            Wanted::Primary,
            &[
                "postgres://me:a,b%40@h1/db?sslmode=verify-full",
                "postgres://me:a,b%40@h2:5433/db?sslmode=verify-full",
                "postgres://me:a,b%40@[::1]:5434/db?sslmode=verify-full",
            ],
        );
        check(
            "postgres://me@h/db?target_session_attrs=read-write",
            &[],
            Wanted::Primary,
            &["postgres://me@h/db?"],
        );
        check(
            "postgres://h1,h2?target_session_attrs=any",
            &[],
            Wanted::Any,
            &["postgres://h1?", "postgres://h2?"],
        );
    }

    #[test]
    fn ports_are_parallel_to_hosts_or_one_for_all() {
        check(
            "postgres:///db?host=h1,/run/pg&port=1,2",
            &[],
            Wanted::Primary,
            &["postgres:///db?&host=h1&port=1", "postgres:///db?&host=/run/pg&port=2"],
        );
        check(
            "postgres://h1,h2/db?port=7",
            &[],
            Wanted::Primary,
            &["postgres://h1/db?&port=7", "postgres://h2/db?&port=7"],
        );
        let refused = expanded("postgres://me:canary@h1,h2,h3/db?port=1,2", &[]).unwrap_err();
        assert!(refused.contains("same length") && !refused.contains("canary"), "{refused}");
    }

    #[test]
    fn the_variables_of_libpq_may_be_lists() {
        let variables = [("PGHOST", "h1,h2"), ("PGPORT", "1,2"), ("PGTARGETSESSIONATTRS", "primary")];
        check(
            "postgres://",
            &variables,
            Wanted::Primary,
            &["postgres://?&host=h1&port=1", "postgres://?&host=h2&port=2"],
        );
        // What the URL says wins, and what is no list is left to sqlx.
        check("postgres://h:3/db", &variables, Wanted::Primary, &["postgres://h:3/db?"]);
        check("postgres:///db", &[("PGHOST", "h"), ("PGPORT", "1")], Wanted::Any, &["postgres:///db?"]);
    }

    #[test]
    fn a_standby_is_never_what_is_wanted() {
        for attributes in ["standby", "read-only", "prefer-standby"] {
            let refused =
                expanded(&format!("postgres://h1,h2/db?target_session_attrs={attributes}"), &[]).unwrap_err();
            assert!(refused.contains("only be used on the primary"), "{refused}");
        }
        assert!(expanded("postgres://h/db?target_session_attrs=readwrite", &[]).is_err());
    }

    #[test]
    fn each_server_keeps_its_own_name_and_all_share_the_rest() {
        let servers: Servers = "postgres://me:pw@h1,h2:5433/db?sslmode=verify-full".parse().unwrap();
        assert_eq!(servers.to_string(), "h1:5432, h2:5433");
        assert!(
            servers
                .each()
                .iter()
                .all(|options| options.get_username() == "me" && options.get_database() == Some("db"))
        );
        assert!(!format!("{servers:?}").contains("pw"), "{servers:?}");
        assert!(!servers.is_same(&"postgres://me:pw@h2:5433,h1/db?sslmode=verify-full".parse().unwrap()));
    }
}
