//! Where the management of a server is, from the text of the configuration.

use std::net::IpAddr;

/// The management of a server: whether it is spoken to over TLS, the host and the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Management {
    pub(super) is_secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Management {
    /// Whether what is said to it stays on this machine. Of other names than `localhost` that cannot be known without asking.
    pub(super) fn is_local(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    }
}

/// From `http://HOST:PORT`, or `None` if it is something else.
pub(super) fn management(text: &str) -> Option<Management> {
    let (scheme, rest) = text.trim().split_once("://")?;
    let (is_secure, usual) = match scheme {
        "http" => (false, 15672),
        "https" => (true, 15671),
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.rsplit_once(':') {
        // The colons of an IPv6 address are inside of brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (rest, usual),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_name = !host.is_empty() && !host.contains(|c: char| "@/?#".contains(c) || c.is_whitespace());
    is_name.then(|| Management { is_secure, host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_management_has_a_host_and_a_port() {
        let of = |text| management(text).map(|found| (found.is_secure, found.host, found.port));
        assert_eq!(of("http://a"), Some((false, "a".to_owned(), 15672)));
        assert_eq!(of("https://[::1]:7/"), Some((true, "::1".to_owned(), 7)));
        assert_eq!(of("https://[::1]"), Some((true, "::1".to_owned(), 15671)));
        for wrong in ["a:15672", "amqp://a", "http://", "http://me:pw@a", "http://a/b", "http://a:x"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
