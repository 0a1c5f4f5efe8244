//! The accept loop, with a limit on everything a client can hold on to.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Beyond these, clients wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// For a request's head. A silent client is gone after it, before a probe loses patience behind so many of them.
const HEAD: Duration = Duration::from_secs(2);
/// Then a connection is closed after the answer it is at, so that a client that reads nothing holds nothing for ever.
const LIFE: Duration = Duration::from_mins(5);
/// For the answer that is on its way when a connection or the server ends.
const LAST_ANSWER: Duration = Duration::from_secs(3);
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Answers until `shutdown` resolves.
pub(super) async fn run(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let (stop, stopped) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let (router, stopped) = (router.clone(), stopped.clone());
        tokio::spawn(async move {
            converse(stream, router, stopped).await;
            drop(permit);
        });
    }
    drop(stop);
    // Every conversation holds a permit until it has ended.
    let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
    let _ = timeout(LAST_ANSWER, room.acquire_many(all)).await;
}

async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            // Mostly: no file descriptor left. Trying again at once would only burn.
            tracing::warn!(%error, "cannot accept a connection on http.listen; trying again");
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn converse(stream: TcpStream, router: Router, mut stopped: watch::Receiver<()>) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let end = tokio::select! {
        end = connection.as_mut() => end,
        // The sender is gone.
        _ = stopped.changed() => finish(connection.as_mut()).await,
        () = sleep(LIFE) => finish(connection.as_mut()).await,
    };
    if let Err(error) = end {
        tracing::debug!(%error, "a connection to http.listen ended early");
    }
}

type Conversation = http1::Connection<TokioIo<TcpStream>, TowerToHyperService<Router>>;

async fn finish(mut connection: Pin<&mut Conversation>) -> Result<(), hyper::Error> {
    connection.as_mut().graceful_shutdown();
    timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
}
