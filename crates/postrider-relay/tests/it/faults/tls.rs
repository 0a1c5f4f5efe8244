//! Who answers, and whether anybody listens in.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider_relay::Relay;
use postrider_testkit::{Authority, Certificate, Database, PostgresServer, Settings, Version};
use sqlx::PgConnection;

use super::{reason, run, runs, says, stays};
use crate::support::{PATIENCE, Probe, database_on, settings, sink};

fn relay(database: &Database, parameters: &str) -> Relay {
    let probe = Probe::new();
    let mut settings = settings(database, vec![sink("probe", probe.target())]);
    settings.database = format!("{}?{parameters}", database.url()).parse().unwrap();
    Relay::start(settings).unwrap()
}

fn verified(authority: &Path) -> String {
    format!("sslmode=verify-full&sslrootcert={}", authority.display())
}

/// Lets the server present this certificate.
async fn present(admin: &mut PgConnection, certificate: &Certificate) {
    for (name, path) in [("ssl_cert_file", &certificate.certificate), ("ssl_key_file", &certificate.key)] {
        run(admin, &format!("alter system set {name} = '{}'", path.display())).await;
    }
    reload(admin).await;
}

/// Which certificate a server presents is decided by its postmaster, when it gets to it.
async fn reload(admin: &mut PgConnection) {
    let before: String = sqlx::query_scalar(LOADED).fetch_one(&mut *admin).await.unwrap();
    run(admin, "select pg_reload_conf()").await;
    loop {
        let now: String = sqlx::query_scalar(LOADED).fetch_one(&mut *admin).await.unwrap();
        if now != before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const LOADED: &str = "select pg_conf_load_time()::text";

/// Sessions of the relay on the server, encrypted and not.
async fn sessions(admin: &mut PgConnection) -> (i64, i64) {
    sqlx::query_as(
        "select count(*) filter (where s.ssl), count(*) filter (where not s.ssl)
         from pg_stat_activity a join pg_stat_ssl s using (pid) where a.application_name like 'postrider%'",
    )
    .fetch_one(admin)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_34_only_the_right_certificate_is_taken_and_never_none() {
    let (ours, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let good = ours.issue("IP:127.0.0.1", 10).unwrap();
    let expired = ours.issue("IP:127.0.0.1", -1).unwrap();
    let elsewhere = ours.issue("DNS:elsewhere.example", 10).unwrap();
    let path = |path: &Path| path.display().to_string();
    let with_tls = Settings::for_tests()
        .set("ssl", "on")
        .set("ssl_cert_file", path(&good.certificate))
        .set("ssl_key_file", path(&good.key));
    let server = PostgresServer::private(Version::default(), with_tls).await.unwrap();
    let database = database_on(&server).await;
    let mut admin = database.connect().await.unwrap();

    let right = relay(&database, &verified(&ours.certificate()));
    runs(&right).await;
    let begun = Instant::now();
    loop {
        let (encrypted, plain) = sessions(&mut admin).await;
        assert_eq!(plain, 0);
        if encrypted >= 3 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{encrypted} sessions");
    }
    right.stop().await;

    let refused = relay(&database, &verified(&other.certificate()));
    says(&refused, "UnknownIssuer").await;
    refused.stop().await;
    for (certificate, words) in [(&expired, "xpired"), (&elsewhere, "NotValidForName")] {
        present(&mut admin, certificate).await;
        let refused = relay(&database, &verified(&ours.certificate()));
        let said = says(&refused, "invalid peer certificate").await;
        assert!(said.contains(words) || said.contains("not valid for"), "{said}");
        let (encrypted, plain) = sessions(&mut admin).await;
        assert_eq!((encrypted, plain), (0, 0), "{said}");
        refused.stop().await;
    }
    // What is documented of the weaker ones: nobody looks at the certificate.
    let trusting = relay(&database, "sslmode=require");
    runs(&trusting).await;
    trusting.stop().await;

    run(&mut admin, "alter system set ssl = off").await;
    reload(&mut admin).await;
    eventually_plain(&database).await;
    for strict in [verified(&ours.certificate()), "sslmode=require".to_owned()] {
        let refused = relay(&database, &strict);
        says(&refused, "server does not support TLS").await;
        stays("it says so", Duration::from_millis(300), || reason(&refused).is_some()).await;
        assert_eq!(sessions(&mut admin).await, (0, 0), "no fallback to plain text");
        refused.stop().await;
    }
    let falling_back = relay(&database, "sslmode=prefer");
    runs(&falling_back).await;
    falling_back.stop().await;
}

/// Waits until the server offers no TLS any more.
async fn eventually_plain(database: &Database) {
    use sqlx::Connection as _;
    let url = format!("{}?sslmode=require", database.url());
    let begun = Instant::now();
    while PgConnection::connect(&url).await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "the server still offers TLS");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
