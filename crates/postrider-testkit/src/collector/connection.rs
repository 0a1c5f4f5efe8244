//! One relay's connection: stores what comes, confirms it in time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Books, Confirm};

/// Serves every relay that comes, until it is dropped.
pub(super) async fn accept(listener: TcpListener, books: Arc<Books>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve(stream, Arc::clone(&books)));
        while connections.try_join_next().is_some() {}
    }
}

/// Ends with the connection: a relay that dies is what this is for.
async fn serve(stream: TcpStream, books: Arc<Books>) -> Result<()> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let hello = lines.next_line().await?.context("no greeting")?;
    let relay: u32 = hello.strip_prefix("relay ").context("no greeting")?.parse()?;
    let (stored, confirmations) = mpsc::unbounded_channel();
    let mut confirming = JoinSet::new();
    confirming.spawn(confirm(relay, write, confirmations, Arc::clone(&books)));
    while let Some(line) = lines.next_line().await? {
        let mut words = line.split(' ');
        let mut word = || words.next().context("a line has three words");
        let (id, key, number) = (word()?.parse()?, word()?, word()?.parse()?);
        books.store(relay, id, key, number);
        if stored.send((id, Instant::now())).is_err() {
            break;
        }
    }
    Ok(())
}

/// Confirms what is stored, in the way that is wanted at the moment.
async fn confirm(
    relay: u32,
    mut relay_side: OwnedWriteHalf,
    mut stored: mpsc::UnboundedReceiver<(Uuid, Instant)>,
    books: Arc<Books>,
) -> Result<()> {
    let mut how = books.confirm.subscribe();
    let mut withheld: VecDeque<Uuid> = VecDeque::new();
    let mut count = 0_u64;
    loop {
        let now = *how.borrow_and_update();
        if matches!(now, Confirm::All | Confirm::After(_)) {
            let answer: Vec<String> = withheld.drain(..).map(|id| format!("{id}\n")).collect();
            relay_side.write_all(answer.concat().as_bytes()).await?;
        }
        books.withhold(relay, withheld.len());
        let (id, arrived) = tokio::select! {
            event = stored.recv() => match event {
                Some(event) => event,
                None => return Ok(()),
            },
            _ = how.changed() => continue,
        };
        count += 1;
        let now = *how.borrow();
        match now {
            Confirm::None => withheld.push_back(id),
            Confirm::EverySecond if count % 2 == 1 => withheld.push_back(id),
            Confirm::After(pause) => {
                tokio::time::sleep_until((arrived + pause).into()).await;
                relay_side.write_all(format!("{id}\n").as_bytes()).await?;
            }
            Confirm::All | Confirm::EverySecond => relay_side.write_all(format!("{id}\n").as_bytes()).await?,
        }
    }
}
