//! The sockets that lapin speaks through, made here: over TLS as everywhere else, and with an end that does not wait.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A connection to a server.
pub enum Socket {
    /// In the clear.
    Plain(TcpStream),
    /// Over TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Connects in the clear.
    pub async fn plain(host: &str, port: u16) -> io::Result<Self> {
        Ok(Self::Plain(connect(host, port).await?))
    }

    /// Connects over TLS; the certificate has to be that host's.
    pub async fn tls(host: &str, port: u16, ca: Option<&Path>) -> io::Result<Self> {
        let ca = ca.map(Path::to_owned);
        // Both ways read files.
        let roots = tokio::task::spawn_blocking(move || roots(ca)).await.map_err(io::Error::other)??;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = connect(host, port).await?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// What ends it from outside.
    pub fn end(&self) -> io::Result<End> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        Ok(End(stream.as_fd().try_clone_to_owned()?))
    }
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn roots(ca: Option<PathBuf>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // The system may have some that are no good; the others are.
            let _ = roots.add(certificate);
        }
        return Ok(roots);
    };
    let wrong = |error: &dyn std::fmt::Display| {
        let why = format!("cannot use the certificates in {}: {error}", path.display());
        io::Error::new(io::ErrorKind::NotFound, why)
    };
    let certificates = CertificateDer::pem_file_iter(&path).map_err(|error| wrong(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"there is none"));
    }
    Ok(roots)
}

/// Ends a socket when it is dropped, with whatever was to be sent still in it: a client that is given up must not send it later.
pub struct End(OwnedFd);

impl Drop for End {
    fn drop(&mut self) {
        // Closing resets the connection, in place of waiting for a server that does not read. Whoever reads from it finds its end.
        let _ = rustix::net::sockopt::set_socket_linger(&self.0, Some(Duration::ZERO));
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Read);
    }
}

impl futures_io::AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, &mut buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, &mut buffer),
        };
        read.map_ok(|()| buffer.filled().len())
    }
}

impl futures_io::AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Tokio, as lapin sees it, with sockets of this kind. lapin does not connect by itself: it is given one that is.
#[derive(Clone, Debug)]
pub(super) struct Sockets(pub(super) Tokio);

impl Reactor for Sockets {
    type TcpStream = Socket;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures_io::AsyncRead + futures_io::AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
