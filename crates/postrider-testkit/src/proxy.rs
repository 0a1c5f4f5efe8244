//! A TCP proxy that misbehaves on demand.

mod connection;
mod pump;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests, published messages.
    ToServer,
    /// From the server to the client: results, confirmations.
    ToClient,
}

/// A TCP proxy on a free loopback port whose faults are switched while it runs.
///
/// Faults add up until [`Proxy::heal`]; they hold for connections that are open and for new ones. The proxy
/// and all its connections end when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    switches: watch::Sender<Switches>,
    connections: watch::Sender<usize>,
    accepted: AtomicUsize,
    carried: [AtomicU64; 2],
}

#[derive(Clone)]
struct Switches {
    upstream: String,
    faults: Faults,
    /// Connections made under an older number are ended, as `ending` says.
    generation: u64,
    ending: Ending,
}

#[derive(Clone, Default)]
struct Faults {
    half_open: bool,
    refuse: bool,
    delay: Duration,
    bytes_per_second: Option<u64>,
    swallow: Vec<Direction>,
    truncate: Option<Truncate>,
}

#[derive(Clone, Copy)]
struct Truncate {
    direction: Direction,
    left: u64,
}

#[derive(Clone, Copy)]
enum Ending {
    Close,
    Reset,
    Abandon,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, a `host:port`, on the current runtime.
    pub async fn start(upstream: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let switches = Switches {
            upstream: upstream.into(),
            faults: Faults::default(),
            generation: 0,
            ending: Ending::Close,
        };
        let shared = Arc::new(Shared {
            switches: watch::Sender::new(switches),
            connections: watch::Sender::new(0),
            accepted: AtomicUsize::new(0),
            carried: Default::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends new connections to another server; open ones stay.
    pub fn set_upstream(&self, upstream: impl Into<String>) {
        self.shared.switches.send_modify(|switches| switches.upstream = upstream.into());
    }

    /// Closes every connection now, on both sides. New ones are welcome.
    pub fn cut(&self) {
        self.shared.end_all(Ending::Close);
    }

    /// Like [`Proxy::cut`], but with RST: both sides get "connection reset by peer".
    pub fn reset(&self) {
        self.shared.end_all(Ending::Reset);
    }

    /// Every connection that is open now is dead without a word, on both sides and for good; new ones work. As after a router lost its
    /// memory of them.
    pub fn abandon(&self) {
        self.shared.end_all(Ending::Abandon);
    }

    /// Forwards nothing any more, in either direction, and keeps the sockets open: the other side has vanished
    /// without a word. What is sent meanwhile arrives after [`Proxy::heal`], as after a partition.
    pub fn half_open(&self) {
        self.fault(|faults| faults.half_open = true);
    }

    /// Every byte arrives that much later; throughput stays as it was.
    pub fn delay(&self, delay: Duration) {
        self.fault(|faults| faults.delay = delay);
    }

    /// Each connection carries at most so many bytes per second, in each direction.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.fault(|faults| faults.bytes_per_second = Some(bytes_per_second.max(1)));
    }

    /// Once `bytes` more bytes have passed in that direction (of all connections together), every connection is
    /// cut. Happens once.
    pub fn truncate_after(&self, direction: Direction, bytes: u64) {
        self.fault(|faults| {
            faults.truncate = Some(Truncate { direction, left: bytes });
        });
    }

    /// Swallows what flows in that direction. A connection that has lost bytes is reset after [`Proxy::heal`]
    /// when more would follow: TCP never delivers a stream with a hole.
    pub fn drop_direction(&self, direction: Direction) {
        self.fault(|faults| faults.swallow.push(direction));
    }

    /// Resets new connections at once; open ones stay.
    pub fn refuse(&self) {
        self.fault(|faults| faults.refuse = true);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.fault(|faults| *faults = Faults::default());
    }

    /// How many client connections are open.
    pub fn connections(&self) -> usize {
        *self.shared.connections.borrow()
    }

    /// How many client connections there have been in all, refused ones included.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many bytes all connections together have carried in that direction.
    pub fn carried(&self, direction: Direction) -> u64 {
        self.shared.carried[direction as usize].load(Ordering::Relaxed)
    }

    /// Waits until exactly `count` client connections are open.
    pub async fn wait_for_connections(&self, count: usize) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.shared.connections.subscribe().wait_for(|open| *open == count).await;
    }

    fn fault(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.switches.send_modify(|switches| change(&mut switches.faults));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections' tasks belong to a set inside that task and end with it.
        self.accepting.abort();
    }
}

impl Shared {
    fn end_all(&self, ending: Ending) {
        self.switches.send_modify(|switches| {
            switches.generation += 1;
            switches.ending = ending;
        });
    }

    /// Asks to forward `wanted` bytes. Fewer may be allowed, and after the last one allowed everything is to
    /// be [cut off](Self::cut_off).
    fn take(&self, direction: Direction, wanted: usize) -> (usize, bool) {
        let mut granted = (wanted, false);
        self.switches.send_if_modified(|switches| {
            if let Some(cut) = switches.faults.truncate.as_mut().filter(|cut| cut.direction == direction) {
                let allowed = wanted.min(usize::try_from(cut.left).unwrap_or(wanted));
                cut.left -= allowed as u64;
                granted = (allowed, cut.left == 0);
            }
            // Nobody waits for a counter.
            false
        });
        self.carried[direction as usize].fetch_add(granted.0 as u64, Ordering::Relaxed);
        granted
    }

    fn cut_off(&self) {
        self.switches.send_if_modified(|switches| {
            // Only the first of several connections that ran into the limit.
            let due = switches.faults.truncate.take_if(|cut| cut.left == 0).is_some();
            if due {
                switches.generation += 1;
                switches.ending = Ending::Close;
            }
            due
        });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    shared.accepted.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection::serve(client, Arc::clone(&shared)));
                }
                // Out of file handles, or a client that was gone at once: the next may work.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
