//! Asks a port whether `PostgreSQL` (or a pooler in front of it) serves there, as `pg_isready` does: the
//! downloaded servers come without that program.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Whether a session can be opened now. A server that is starting up or shutting down says no.
pub(crate) fn answers(port: u16) -> bool {
    first_byte(port).is_some_and(|kind| kind == b'R')
}

/// The kind of the first message: `R` asks for (or waives) authentication, `E` is an error.
fn first_byte(port: u16) -> Option<u8> {
    let patience = Duration::from_secs(2);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(&startup_message()).ok()?;
    let mut kind = [0];
    stream.read_exact(&mut kind).ok()?;
    // Terminate, or the server logs a lost connection.
    let _ = stream.write_all(b"X\0\0\0\x04");
    Some(kind[0])
}

fn startup_message() -> Vec<u8> {
    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let mut message = Vec::new();
    let length = u32::try_from(8 + parameters.len()).unwrap_or_default();
    message.extend(length.to_be_bytes());
    message.extend(196_608_u32.to_be_bytes()); // protocol 3.0
    message.extend(parameters);
    message
}
