//! Where a server is, from the text of the configuration.

use lapin::uri::{AMQPScheme, AMQPUri};

/// The servers of a text with commas, or `None` where one of them is none.
pub(super) fn servers(text: &str) -> Option<Vec<AMQPUri>> {
    text.split(',').map(|url| server(url.trim())).collect()
}

fn server(url: &str) -> Option<AMQPUri> {
    if !(url.starts_with("amqp://") || url.starts_with("amqps://")) {
        return None;
    }
    let mut uri: AMQPUri = url.parse().ok()?;
    // By the letter of the specification `amqp://host/` is a virtual host without a name, which nobody has.
    if uri.vhost.is_empty() {
        "/".clone_into(&mut uri.vhost);
    }
    (!uri.authority.host.is_empty()).then_some(uri)
}

/// Whether a server is spoken to over TLS.
pub(super) fn is_secure(uri: &AMQPUri) -> bool {
    uri.scheme == AMQPScheme::AMQPS
}

/// The management of a server: whether it is spoken to over TLS, the host and the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Management {
    pub(super) is_secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
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
    fn a_virtual_host_without_a_name_is_the_usual_one() {
        let vhosts =
            |text: &str| -> Vec<String> { servers(text).unwrap().into_iter().map(|uri| uri.vhost).collect() };
        assert_eq!(vhosts("amqp://a, amqp://b/ ,amqps://c/%2f,amqp://d/shop"), ["/", "/", "/", "shop"]);
        for wrong in ["", "a:5672", "http://a", "amqp://a,", "redis://a"] {
            assert_eq!(servers(wrong), None, "{wrong}");
        }
    }

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
