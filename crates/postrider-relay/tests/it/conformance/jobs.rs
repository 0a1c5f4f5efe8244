//! The sink `jobs`, against a database with the queue.

use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use postrider::schema::{self, Install};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::jobs::{JobsConfig, JobsSink};
use postrider_relay::units::Span;
use postrider_relay::{Sink, Unavailable};
use postrider_testkit::conformance::{Control, Door, Subject, Test, WRONG_PASSWORD, Way, examine};
use postrider_testkit::{Authority, Database, PostgresServer, Process, Settings, Signal, Template, Version};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::kills;

const LARGEST: i64 = 100_000;

struct Tested {
    database: Database,
    server: PostgresServer,
    right: Authority,
    wrong: Authority,
    frozen: Mutex<Vec<i32>>,
}

impl Tested {
    async fn new() -> Result<Self> {
        let (right, wrong) = (Authority::new()?, Authority::new()?);
        let certificate = right.issue("IP:127.0.0.1", 10)?;
        let path = |path: &Path| path.display().to_string();
        let settings = Settings::for_tests()
            .set("ssl", "on")
            .set("ssl_cert_file", path(&certificate.certificate))
            .set("ssl_key_file", path(&certificate.key));
        let server = PostgresServer::private(Version::default(), settings).await?;
        let template = Template::new("jobs_conformance", |url| async move {
            let mut connection = PgConnection::connect(&url).await?;
            let install = Install { max_payload: Some(LARGEST), ..Install::default() };
            schema::install(&mut connection, &install).await?;
            connection.close().await?;
            Ok(())
        });
        let database = server.database(&template).await?;
        Ok(Self { database, server, right, wrong, frozen: Mutex::default() })
    }

    fn config(&self, way: &Way) -> Result<JobsConfig> {
        let own = self.database.url();
        let (user, _) =
            own.trim_start_matches("postgres://").split_once('@').context("no user in the address")?;
        let wrong = format!("nobody:{WRONG_PASSWORD}");
        let user = if way.door == Door::WrongPassword { wrong.as_str() } else { user };
        let authority = match way.door {
            Door::Tls => Some(self.right.certificate()),
            Door::WrongAuthority => Some(self.wrong.certificate()),
            Door::Plain | Door::WrongPassword => None,
        };
        let tls = authority.map(|path| format!("?sslmode=verify-full&sslrootcert={}", path.display()));
        let url = format!(
            "postgres://{user}@127.0.0.1:{}/{}{}",
            way.port,
            self.database.name(),
            tls.as_deref().unwrap_or("?sslmode=disable")
        );
        Ok(JobsConfig { timeout: Span(way.patience), ..JobsConfig::new(url) })
    }

    /// Those that serve the sink, and the postmaster.
    async fn freeze(&self) -> Result<()> {
        let mut pids: Vec<i32> =
            sqlx::query_scalar("select pid from pg_stat_activity where application_name = 'postrider jobs'")
                .fetch_all(&mut self.database.connect().await?)
                .await?;
        pids.push(self.server.pid()?);
        for pid in &pids {
            // One of an earlier attempt may be ending.
            Process::find(*pid).map_or(Ok(()), |process| process.signal(Signal::STOP))?;
        }
        self.frozen.lock().expect("nobody panics with it").extend(pids);
        Ok(())
    }

    fn thaw(&self) -> Result<()> {
        for pid in self.frozen.lock().expect("nobody panics with it").drain(..) {
            // A backend may be gone.
            Process::find(pid).map_or(Ok(()), |process| process.signal(Signal::CONT))?;
        }
        Ok(())
    }
}

impl Subject for Tested {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let config = self.config(way).expect("the database has an address");
            let sink: Box<dyn Sink> = Box::new(JobsSink::open(config).await?);
            Ok(sink)
        })
    }

    fn upstream(&self, _door: Door) -> Option<String> {
        Some(format!("127.0.0.1:{}", self.server.port()))
    }

    fn destination(&self) -> String {
        "conformance".to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async {
            let keys: Vec<String> = sqlx::query_scalar(
                "select unique_key from postrider.jobs where queue = 'conformance' order by id",
            )
            .fetch_all(&mut self.database.connect().await?)
            .await?;
            let id = |key: &String| Ok(key.strip_prefix("event:").context("no event's")?.parse()?);
            keys.iter().map(id).collect()
        })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match what {
                Control::Freeze => self.freeze().await,
                Control::Thaw => self.thaw(),
                Control::Kill => self.server.crash().await,
                Control::Start => self.server.start().await,
            }
        })
    }

    fn oversize(&self) -> usize {
        usize::try_from(LARGEST).unwrap_or(usize::MAX) + 1
    }

    fn unroutable(&self) -> String {
        String::new()
    }

    fn never_repeats(&self) -> bool {
        true
    }

    fn kills(&self) -> usize {
        kills(8)
    }

    fn exempt(&self, test: Test) -> Option<&'static str> {
        (test == Test::Unroutable).then_some("a queue is made by its first job")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_keep_the_contract() {
    let verdicts = examine(&Tested::new().await.unwrap()).await;
    verdicts.assert_passed();
    assert_eq!(verdicts.exempt().len(), 1);
}
