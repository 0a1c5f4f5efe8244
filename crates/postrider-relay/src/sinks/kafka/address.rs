//! Where the brokers are, and as whom we come.

use crate::sinks::percent::decoded;

/// What an address says: `kafka://USER:PASSWORD@HOST:PORT,HOST:PORT`.
pub(super) struct Address {
    /// `HOST:PORT`, with commas between them.
    pub(super) brokers: String,
    /// With its password, both decoded.
    pub(super) user: Option<(String, String)>,
    pub(super) is_over_tls: bool,
}

impl Address {
    /// Nothing of it is repeated in the objection: it may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        const HOW: &str =
            "write kafka://HOST:PORT, or kafka+ssl://HOST:PORT for TLS; several brokers with commas";
        let (is_over_tls, rest) = match (url.strip_prefix("kafka://"), url.strip_prefix("kafka+ssl://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(HOW),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // A password may have an @ in it, a host has none.
        let (user, hosts) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, hosts)) => {
                let (user, password) =
                    login.split_once(':').ok_or("a user needs a password: USER:PASSWORD@")?;
                (Some((decoded(user), decoded(password))), hosts)
            }
        };
        let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
        if !hosts.iter().all(|host| is_host(host)) {
            return Err(HOW);
        }
        Ok(Self { brokers: hosts.join(","), user, is_over_tls })
    }
}

fn is_host(host: &str) -> bool {
    let strange = |c: char| c.is_whitespace() || c.is_control() || "/?#".contains(c);
    match host.rsplit_once(':') {
        Some((name, port)) => !name.is_empty() && !name.contains(strange) && port.parse::<u16>().is_ok(),
        None => !host.is_empty() && !host.contains(strange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_brokers_and_perhaps_a_user() {
        let plain = Address::parse("kafka://a:9092, b/").unwrap();
        assert_eq!((plain.brokers.as_str(), plain.user, plain.is_over_tls), ("a:9092,b", None, false));
        let secret = Address::parse("kafka+ssl://me:p%40s@s%zz@[::1]:9093").unwrap();
        assert_eq!(secret.user, Some(("me".to_owned(), "p@s@s%zz".to_owned())));
        assert!(secret.is_over_tls && secret.brokers == "[::1]:9093");
        for wrong in [
            "http://a",
            "kafka://",
            "kafka://a:b",
            "kafka://a,,b",
            "kafka://me@a",
            "kafka://a/topic",
            "a:9092",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
