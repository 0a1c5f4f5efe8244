//! Ports for servers that may be stopped and started again.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};
use rand::RngExt as _;

/// Below the kernel's range for outgoing connections (32768 upwards). Inside that range a client that
/// retries while its server is down sooner or later connects to *itself* and so takes the server's port.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Ports that are free now, all different. Another process may still take one before the server binds it:
/// whoever starts a server tries again with other ports.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let mut held: Vec<(u16, TcpListener)> = Vec::with_capacity(count);
    for _ in 0..1000 {
        if held.len() == count {
            break;
        }
        let port = rand::rng().random_range(RANGE);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener));
        }
    }
    if held.len() < count {
        bail!("found no {count} free ports between {} and {}", RANGE.start, RANGE.end);
    }
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ports_of_one_server_differ() {
        let mut ports = super::free(20).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
