//! One client connection and its counterpart to the server.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::pump::{Pump, Stopped};
use super::{Direction, Ending, Shared, Switches};

/// Carries one connection until either side closes it or it is ended from outside.
pub(super) async fn serve(mut client: TcpStream, shared: Arc<Shared>) {
    let mut switches = shared.switches.subscribe();
    let generation = switches.borrow().generation;
    if switches.borrow().faults.refuse {
        let _ = client.set_zero_linger();
        return;
    }
    let _open = Open::new(&shared.connections);

    let mut server = None;
    let ending = tokio::select! {
        ended = carry(&mut client, &mut server, &shared) => ended,
        ended = ended_from_outside(&mut switches, generation) => ended,
    };
    match ending {
        Ending::Close => {}
        Ending::Reset => {
            // With a linger time of zero the kernel sends RST in place of FIN when the socket is dropped.
            for socket in [Some(client), server].into_iter().flatten() {
                let _ = socket.set_zero_linger();
            }
        }
        // Until the proxy is dropped, with both sockets.
        Ending::Abandon => std::future::pending().await,
    }
}

async fn carry(client: &mut TcpStream, server: &mut Option<TcpStream>, shared: &Shared) -> Ending {
    let mut switches = shared.switches.subscribe();
    if switches.wait_for(|now| !now.faults.half_open).await.is_err() {
        return Ending::Close;
    }
    let upstream = switches.borrow().upstream.clone();
    let Ok(connected) = TcpStream::connect(upstream).await else {
        return Ending::Reset;
    };
    let server = server.insert(connected);
    // A proxy must not add delays of its own.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);

    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = Pump::new(Direction::ToServer, shared);
    let down = Pump::new(Direction::ToClient, shared);
    let both = tokio::try_join!(up.run(from_client, to_server), down.run(from_server, to_client));
    match both {
        // After a cut the switch ends this connection too; which of the two is seen first does not matter.
        Ok(_) | Err(Stopped::Cut) => Ending::Close,
        Err(Stopped::Broken) => Ending::Reset,
    }
}

async fn ended_from_outside(switches: &mut watch::Receiver<Switches>, born: u64) -> Ending {
    match switches.wait_for(|now| now.generation != born).await {
        Ok(now) => now.ending,
        Err(_) => Ending::Close,
    }
}

/// Counts a connection while it is open, however its task ends.
struct Open<'a>(&'a watch::Sender<usize>);

impl<'a> Open<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|open| *open += 1);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}
