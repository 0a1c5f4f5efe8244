//! Every fault against a loopback echo server.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

/// Long enough to be sure that nothing comes.
const SILENCE: Duration = Duration::from_millis(100);

async fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

async fn proxy() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    assert_eq!(ask(&mut client, b"hello").await, b"hello");
    (proxy, client)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.unwrap()
}

async fn ask(client: &mut TcpStream, question: &[u8]) -> Vec<u8> {
    client.write_all(question).await.unwrap();
    let mut answer = vec![0; question.len()];
    client.read_exact(&mut answer).await.unwrap();
    answer
}

async fn is_silent(client: &mut TcpStream) -> bool {
    timeout(SILENCE, client.read_u8()).await.is_err()
}

#[tokio::test]
async fn forwards_much_and_passes_on_the_end() {
    let (_proxy, client) = proxy().await;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut from, mut to) = client.into_split();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap();
    assert!(received == expected);
}

#[tokio::test]
async fn cut_closes_open_connections_only() {
    let (proxy, mut client) = proxy().await;
    proxy.cut();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    proxy.wait_for_connections(0).await;
    assert_eq!(ask(&mut connect(&proxy).await, b"again").await, b"again");
}

#[tokio::test]
async fn reset_is_seen_as_reset() {
    let (proxy, mut client) = proxy().await;
    proxy.reset();
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(ask(&mut connect(&proxy).await, b"again").await, b"again");
}

#[tokio::test]
async fn half_open_holds_everything_back_until_healed() {
    let (proxy, mut client) = proxy().await;
    proxy.half_open();
    client.write_all(b"late").await.unwrap();
    assert!(is_silent(&mut client).await);
    let mut newcomer = connect(&proxy).await;
    newcomer.write_all(b"new").await.unwrap();
    assert!(is_silent(&mut newcomer).await);
    proxy.wait_for_connections(2).await;

    proxy.heal();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"late");
    newcomer.read_exact(&mut answer[..3]).await.unwrap();
    assert_eq!(&answer[..3], b"new");
}

#[tokio::test]
async fn a_half_open_connection_can_be_cut() {
    let (proxy, mut client) = proxy().await;
    proxy.half_open();
    proxy.cut();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn delay_counts_both_ways_but_does_not_add_up() {
    let (proxy, mut client) = proxy().await;
    proxy.delay(Duration::from_millis(100));
    // Far more than one chunk: they travel together.
    let large = vec![7; 1_000_000];
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let (mut from, mut to) = client.split();
        let mut answer = vec![0; large.len()];
        tokio::try_join!(to.write_all(&large), from.read_exact(&mut answer)).unwrap();
        fastest = fastest.min(start.elapsed());
    }
    assert!(fastest >= Duration::from_millis(200), "{fastest:?}");
    // One chunk after the other would take 62 times 200 ms.
    assert!(fastest < Duration::from_secs(6), "{fastest:?}");
    proxy.heal();
    // A machine that is busy with something else is so now and then; a delay that stays is there each time.
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        ask(&mut client, b"quick").await;
        fastest = fastest.min(start.elapsed());
    }
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}

#[tokio::test]
async fn throttle_limits_the_rate() {
    let (proxy, mut client) = proxy().await;
    proxy.throttle(10_000);
    let start = Instant::now();
    ask(&mut client, &[1; 3000]).await;
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
}

#[tokio::test]
async fn truncate_passes_exactly_so_many_bytes_then_cuts_once() {
    let (proxy, mut client) = proxy().await;
    proxy.truncate_after(Direction::ToClient, 7);
    client.write_all(b"0123456789").await.unwrap();
    let mut received = Vec::new();
    // The end may be a reset: the server's other three bytes were never read.
    let _ = client.read_to_end(&mut received).await;
    assert_eq!(received, b"0123456");
    assert_eq!(ask(&mut connect(&proxy).await, b"0123456789").await, b"0123456789");
}

#[tokio::test]
async fn the_other_direction_does_not_count_for_truncate() {
    let (proxy, mut client) = proxy().await;
    proxy.truncate_after(Direction::ToServer, 4);
    assert_eq!(ask(&mut client, b"abc").await, b"abc");
    client.write_all(b"de").await.unwrap();
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty() || rest == b"d");
}

#[tokio::test]
async fn a_dropped_direction_swallows_and_never_leaves_a_hole() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (proxy, mut client) = proxy().await;
        proxy.drop_direction(direction);
        client.write_all(b"lost").await.unwrap();
        assert!(is_silent(&mut client).await);
        proxy.heal();
        client.write_all(b"more").await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn refuse_turns_away_newcomers_only() {
    let (proxy, mut client) = proxy().await;
    proxy.refuse();
    // The kernel accepts before the proxy can, so the connection is made and then reset.
    if let Ok(mut newcomer) = TcpStream::connect(proxy.addr()).await {
        assert!(newcomer.read(&mut [0]).await.is_err());
    }
    assert_eq!(ask(&mut client, b"still here").await, b"still here");
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy).await, b"welcome").await, b"welcome");
}

#[tokio::test]
async fn a_dead_upstream_resets_and_another_can_take_over() {
    let (proxy, _client) = proxy().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    proxy.set_upstream(gone.to_string());
    assert!(connect(&proxy).await.read(&mut [0]).await.is_err());
    proxy.set_upstream(echo_server().await);
    assert_eq!(ask(&mut connect(&proxy).await, b"new").await, b"new");
}

#[tokio::test]
async fn dropping_the_proxy_ends_its_connections() {
    let (proxy, mut client) = proxy().await;
    let address = proxy.addr();
    drop(proxy);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert!(TcpStream::connect(address).await.is_err());
}
