//! Asks a server's management over HTTP: the few words of it that are needed for one question and its answer.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use futures_io::{AsyncRead, AsyncWrite};
use futures_util::future::poll_fn;
use lapin::uri::AMQPUserInfo;
use postrider::amqp::{self, Socket};
use serde_json::Value;
use tokio::time::timeout;

use super::address::{self, Management};
use super::config::RabbitMqConfig;
use super::error::silent;
use crate::sink::{Unavailable, UnavailableKind};

/// Nothing that is asked for is longer.
const LONGEST: usize = 16 << 20;

/// Where to ask, and as whom.
pub(super) struct Asked<'a> {
    config: &'a RabbitMqConfig,
    management: Management,
    user: AMQPUserInfo,
    /// As it stands in a path.
    pub(super) vhost: String,
    /// What was answered, by path. Queues share their dead-letter exchanges, and one look is one moment.
    known: Mutex<BTreeMap<String, Option<Value>>>,
}

impl<'a> Asked<'a> {
    /// What the configuration names; `None` without `management`.
    pub(super) fn of(config: &'a RabbitMqConfig) -> Option<Self> {
        let management = address::management(config.management.as_deref()?)?;
        let server = amqp::servers(&config.url)?.into_iter().next()?;
        let (user, vhost) = (server.authority.userinfo, encoded(&server.vhost));
        Some(Self { config, management, user, vhost, known: Mutex::default() })
    }

    /// What is said of a queue; `None` if there is none of that name.
    pub(super) async fn queue(&self, name: &str) -> Result<Option<Value>, Unavailable> {
        self.get(&format!("/api/queues/{}/{}", self.vhost, encoded(name))).await
    }

    /// What is at this path, as JSON; `None` if nothing is. It is asked once.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Unavailable> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let answer = self.ask(path).await?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), answer.clone());
        Ok(answer)
    }

    async fn ask(&self, path: &str) -> Result<Option<Value>, Unavailable> {
        let answer = timeout(self.config.timeout.0, self.exchange(path)).await;
        let answer = answer.map_err(|_| silent("the management of RabbitMQ did not answer in time"))?;
        let (status, body) = answer.map_err(|error| Unavailable::new(UnavailableKind::Connection, error))?;
        let said = |kind, words: &str| {
            Unavailable::new(kind, format!("the management of RabbitMQ says {status} to {path}: {words}"))
        };
        match status {
            200 => serde_json::from_slice(&body)
                .map(Some)
                .map_err(|error| said(UnavailableKind::Connection, &error.to_string())),
            404 => Ok(None),
            401 | 403 => Err(said(UnavailableKind::Forbidden, "give the user the tag `monitoring`")),
            _ => Err(said(UnavailableKind::Connection, "that is no answer")),
        }
    }

    async fn exchange(&self, path: &str) -> io::Result<(u16, Vec<u8>)> {
        let Management { is_secure, host, port } = &self.management;
        let mut socket = if *is_secure {
            Socket::tls(host, *port, self.config.ca.as_deref()).await?
        } else {
            Socket::plain(host, *port).await?
        };
        let AMQPUserInfo { username, password } = &self.user;
        let login = base64(format!("{username}:{password}").as_bytes());
        // 1.0: the answer comes in one piece, and ends with the connection.
        let question = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: Basic {login}\r\n\r\n");
        write(&mut socket, question.as_bytes()).await?;
        let answer = read(&mut socket).await?;
        let wrong =
            || io::Error::new(io::ErrorKind::InvalidData, "the management of RabbitMQ speaks no HTTP");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(wrong)?;
        let head = std::str::from_utf8(&answer[..end]).map_err(|_| wrong())?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(wrong)?;
        Ok((status, answer[end + 4..].to_vec()))
    }
}

async fn write(socket: &mut Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|context| std::pin::Pin::new(&mut *socket).poll_write(context, bytes)).await?;
        bytes = &bytes[written..];
    }
    poll_fn(|context| std::pin::Pin::new(&mut *socket).poll_flush(context)).await
}

async fn read(socket: &mut Socket) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = poll_fn(|context| std::pin::Pin::new(&mut *socket).poll_read(context, &mut buffer)).await;
        match read {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            // Some servers end TLS without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(answer),
            Err(error) => return Err(error),
        }
        if answer.len() > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer of the management has no end",
            ));
        }
    }
}

/// As it stands in a path.
pub(super) fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
        path
    })
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_request_is_written_as_it_has_to_be() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(encoded("/"), "%2F");
        assert_eq!(encoded("a.b c/ä"), "a.b%20c%2F%C3%A4");
    }
}
