use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::*;

async fn relay(collector: &Collector, number: u32) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(collector.address()).await.unwrap();
    stream.write_all(format!("relay {number}\n").as_bytes()).await.unwrap();
    BufReader::new(stream)
}

async fn send(relay: &mut BufReader<TcpStream>, id: Uuid, number: u64) {
    relay.write_all(format!("{id} k {number}\n").as_bytes()).await.unwrap();
}

async fn confirmed(relay: &mut BufReader<TcpStream>) -> Uuid {
    let mut line = String::new();
    relay.read_line(&mut line).await.unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test]
async fn it_stores_first_and_confirms_as_it_is_told() {
    let collector = Collector::start().await.unwrap();
    let ids: Vec<Uuid> = (0..4).map(Uuid::from_u128).collect();
    let mut one = relay(&collector, 1).await;
    send(&mut one, ids[0], 1).await;
    assert_eq!(confirmed(&mut one).await, ids[0]);

    collector.confirm(Confirm::None);
    send(&mut one, ids[1], 2).await;
    collector.withholds_from(1).await;
    assert_eq!(collector.receipts().len(), 2, "stored all the same");
    collector.confirm(Confirm::All);
    assert_eq!(confirmed(&mut one).await, ids[1]);

    collector.confirm(Confirm::EverySecond);
    send(&mut one, ids[2], 3).await;
    send(&mut one, ids[3], 4).await;
    assert_eq!(confirmed(&mut one).await, ids[3]);
    collector.confirm(Confirm::After(Duration::from_millis(1)));

    let mut two = relay(&collector, 2).await;
    send(&mut two, ids[3], 4).await;
    assert_eq!(confirmed(&mut two).await, ids[3]);
    assert_eq!(collector.sent_again(), BTreeMap::from([(1, 1)]));
    assert_eq!(collector.last_from(1, 2), [ids[3], ids[2]]);
}
