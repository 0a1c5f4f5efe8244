//! Ports for servers that may be stopped and started again.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use rand::RngExt as _;

/// Below the kernel's range for outgoing connections (32768 upwards). Inside that range a client that
/// retries while its server is down sooner or later connects to *itself* and so takes the server's port.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// What this process has given out: a server that is down for a moment, or not started yet, finds its ports as they were.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Ports that are free now, all different, and given out to nobody else by this process. Another process may still take one before the
/// server binds it: whoever starts a server tries again with other ports.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    if given.len() + 2_000 > RANGE.len() {
        given.clear();
    }
    let mut held: Vec<(u16, TcpListener)> = Vec::with_capacity(count);
    for _ in 0..1000 {
        if held.len() == count {
            break;
        }
        let port = rand::rng().random_range(RANGE);
        if !given.contains(&port)
            && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        {
            held.push((port, listener));
        }
    }
    if held.len() < count {
        bail!("found no {count} free ports between {} and {}", RANGE.start, RANGE.end);
    }
    given.extend(held.iter().map(|(port, _)| *port));
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
