//! Against a real database, a status that the test makes up, and a client of one line.

mod health;
mod limits;
mod metrics;

use std::future;
use std::sync::Mutex;
use std::time::SystemTime;

use postrider::capture::Alarm;
use postrider::schema::{self, Install};
use postrider_relay::State;
use postrider_testkit::{Database, PostgresServer, Template, Version, postgres};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const WEEK: Duration = Duration::from_hours(168);

fn settings(listen: SocketAddr, captured: watch::Receiver<CaptureStatus>) -> Settings {
    let alerts = Alerts { lag: Duration::from_secs(5), stuck: Duration::from_mins(5) };
    Settings {
        listen,
        limits: watch::channel(Limits { retention: WEEK, max_log_size: Some(5_000_000_000), alerts }).1,
        captured,
    }
}

/// A server over `database`, whose sinks are what the test says.
struct World {
    address: SocketAddr,
    sinks: Arc<Mutex<Vec<SinkStatus>>>,
    captured: watch::Sender<CaptureStatus>,
}

impl World {
    async fn over(url: &str) -> Self {
        start_counting();
        let sinks = Arc::new(Mutex::new(vec![sink("web", State::Running)]));
        let shown = Arc::clone(&sinks);
        let (captured, looked) = watch::channel(CaptureStatus::default());
        let settings = settings(([127, 0, 0, 1], 0).into(), looked);
        let status: Status = Arc::new(move || shown.lock().unwrap().clone());
        let serving = serve(settings, status, url.parse().unwrap(), future::pending()).await.unwrap();
        Self { address: serving.address, sinks, captured }
    }

    fn set(&self, sinks: Vec<SinkStatus>) {
        *self.sinks.lock().unwrap() = sinks;
    }

    async fn get(&self, path: &str) -> (u16, String) {
        get(self.address, path).await
    }

    /// Asks until the answer is as wanted: what the database says is remembered for a second.
    async fn until(&self, path: &str, is_wanted: impl Fn(u16, &str) -> bool) -> String {
        let patience = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let (code, body) = self.get(path).await;
            if is_wanted(code, &body) {
                return body;
            }
            assert!(tokio::time::Instant::now() < patience, "{path} stays at {code}:\n{body}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Two tables, one of them with its trigger switched off.
fn captured() -> CaptureStatus {
    let off = Alarm {
        table: "public.orders".to_owned(),
        state: postrider::capture::State::Disabled,
        reason: "it is switched off".to_owned(),
    };
    let tables = vec!["public.orders".to_owned(), "public.lines".to_owned()];
    CaptureStatus { tables, alarms: vec![off], swept_at: Some(SystemTime::now()) }
}

fn sink(name: &str, state: State) -> SinkStatus {
    SinkStatus {
        name: name.to_owned(),
        kind: "file",
        state,
        since: SystemTime::now(),
        lanes: vec![0, 1, 2],
        in_flight: 7,
        settled_position: None,
        delivered: 1234,
        last_delivery: Some(SystemTime::now()),
        silent_for: Duration::from_millis(3),
        silence: None,
    }
}

/// Status and body.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let (head, body) =
        request(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Head and body.
async fn request(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

async fn database() -> Database {
    database_on(&postgres(Version::default()).await.unwrap()).await
}

async fn database_on(server: &PostgresServer) -> Database {
    let template = Template::new("postrider_cli", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    server.database(&template).await.unwrap()
}
