//! Asks a port whether its server serves, in a few bytes of its own protocol.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The first bytes of the answer, as many as were asked for.
pub(super) fn answer<const N: usize>(port: u16, question: &[u8]) -> Option<[u8; N]> {
    let patience = Duration::from_secs(2);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(question).ok()?;
    let mut answer = [0; N];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}
