//! Which node of a Redis Cluster keeps which stream.

use redis::Value;

use super::connection::text;

/// Of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    /// Empty: where the node that was asked is.
    host: String,
    pub(super) port: u16,
}

impl Address {
    pub(super) fn host_or(&self, asked: String) -> String {
        if self.host.is_empty() { asked } else { self.host.clone() }
    }
}

/// The 16,384 slots of a cluster, in ranges, and who has each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slots(Vec<(u16, u16, Address)>);

impl Slots {
    /// What `CLUSTER SLOTS` says: `[[first, last, [host, port, …], replica, …], …]`.
    pub(super) fn parse(answer: &Value) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        Some(Self(ranges.iter().filter_map(range).collect()))
    }

    /// Who has this slot, if anybody.
    pub(super) fn node(&self, slot: u16) -> Option<&Address> {
        let range = self.0.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node)
    }

    /// Those that have slots.
    pub(super) fn nodes(&self) -> Vec<&Address> {
        let mut nodes: Vec<&Address> = Vec::new();
        for (_, _, node) in &self.0 {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
}

fn range(value: &Value) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = value else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let address = Address {
        host: text(host).filter(|host| host != "?").unwrap_or_default(),
        port: u16::try_from(*port).ok()?,
    };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
}

/// The slot of a stream: by what stands between its first braces, if anything does, else by all of its name.
pub(super) fn slot(stream: &str) -> u16 {
    let tag = stream.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(stream);
    crc16(hashed.as_bytes()) % 16_384
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_where_redis_says() {
        // By `CLUSTER KEYSLOT`.
        for (stream, expected) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("a{foo}b", 12_182),
            ("a{foo}{bar}", 12_182),
            ("{}foo", 9500),
            ("a{foo", 113),
        ] {
            assert_eq!(slot(stream), expected, "{stream}");
        }
    }

    #[test]
    fn slots_belong_to_nodes() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let slots = Slots::parse(&Value::Array(vec![
            range(0, 99, node(text("a"), 1)),
            range(100, 16_383, node(Value::Nil, 2)),
        ]))
        .unwrap();
        assert_eq!(slots.node(99).map(|node| node.host_or("b".to_owned())), Some("a".to_owned()));
        assert_eq!(slots.node(100).map(|node| node.host_or("b".to_owned())), Some("b".to_owned()));
        assert_eq!(slots.nodes().len(), 2);
        assert_eq!(Slots::parse(&Value::Nil), None);
    }
}
