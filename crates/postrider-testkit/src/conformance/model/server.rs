//! A server that keeps what it is sent, in order of arrival, and says so.
//!
//! An event comes as its id (16 bytes), the length of its destination (1), that of its body (4), and both. The answer is one byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use super::LARGEST;
use crate::conformance::Control;

/// Nobody listens there.
pub(super) const NOWHERE: &str = "nowhere";

pub(super) const STORED: u8 = b'+';
pub(super) const TOO_LARGE: u8 = b'>';
pub(super) const UNROUTABLE: u8 = b'?';

pub(super) struct ModelServer {
    address: SocketAddr,
    books: Arc<Books>,
    life: Mutex<Option<JoinHandle<()>>>,
}

struct Books {
    stored: Mutex<Vec<Uuid>>,
    frozen: watch::Sender<bool>,
}

impl ModelServer {
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let books = Arc::new(Books { stored: Mutex::default(), frozen: watch::channel(false).0 });
        let life = Mutex::new(Some(tokio::spawn(serve(listener, Arc::clone(&books)))));
        Ok(Self { address, books, life })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn stored(&self) -> Vec<Uuid> {
        self.books.stored.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn control(&self, what: Control) -> Result<()> {
        match what {
            Control::Freeze | Control::Thaw => {
                self.books.frozen.send_replace(what == Control::Freeze);
            }
            Control::Kill => {
                let life = self.life.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(life) = life {
                    life.abort();
                    let _ = life.await;
                }
            }
            Control::Start => {
                let listener = TcpListener::bind(self.address).await?;
                let life = tokio::spawn(serve(listener, Arc::clone(&self.books)));
                *self.life.lock().unwrap_or_else(PoisonError::into_inner) = Some(life);
            }
        }
        Ok(())
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        if let Some(life) = self.life.lock().unwrap_or_else(PoisonError::into_inner).take() {
            life.abort();
        }
    }
}

/// Connections belong to a set inside this task and end with it.
async fn serve(listener: TcpListener, books: Arc<Books>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(receive(stream, Arc::clone(&books)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Until the connection ends.
async fn receive(mut stream: TcpStream, books: Arc<Books>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut frozen = books.frozen.subscribe();
    loop {
        let id = Uuid::from_u128(stream.read_u128().await?);
        let mut destination = vec![0; stream.read_u8().await?.into()];
        let mut body = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut destination).await?;
        stream.read_exact(&mut body).await?;
        // The sender lives as long as the server.
        let _ = frozen.wait_for(|frozen| !frozen).await;
        let answer = if body.len() > LARGEST {
            TOO_LARGE
        } else if destination == NOWHERE.as_bytes() {
            UNROUTABLE
        } else {
            books.stored.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            STORED
        };
        stream.write_u8(answer).await?;
    }
}
