//! Where servers are.

use lapin::uri::AMQPUri;

/// The servers of a text with commas, or `None` where one of them is none.
pub fn servers(text: &str) -> Option<Vec<AMQPUri>> {
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
}
