//! Kafka: one broker that is its own controller, or several that are so together.

mod acl;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop};
use crate::tls::Certificate;

/// What a Kafka broker is started as. Topics are made by whoever wants them.
///
/// A broker sends its clients to the address that it advertises. One that is to be reached through a proxy has to advertise the proxy's
/// port, which is why the proxy is made first, and pointed at the broker afterwards.
#[derive(Clone, Debug, Default, Hash)]
pub struct Kafka {
    settings: Vec<(String, String)>,
    /// Where clients of the plain entrance are sent; to itself, unless it is set.
    advertised: Option<u16>,
    is_measured: bool,
    login: Option<Login>,
    tls: Option<Tls>,
    node: Option<Node>,
}

/// One of several.
#[derive(Clone, Debug, Hash)]
struct Node {
    number: usize,
    /// Where the controllers of all of them listen, in order.
    controllers: Vec<u16>,
}

/// One more entrance, for whoever knows a user and a password.
#[derive(Clone, Debug, Hash)]
struct Login {
    user: String,
    password: String,
    advertised: u16,
}

/// One more entrance, over TLS.
#[derive(Clone, Debug, Hash)]
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    advertised: u16,
}

const LOGIN: usize = 2;
const SECURE: usize = 3;

impl Kafka {
    /// One broker with everything replicated once.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many that are a cluster, ready to be started together: they serve when more than half of them do. Their numbers begin with 1.
    pub fn cluster(count: usize) -> Result<Vec<Self>> {
        let controllers = crate::ports::free(count)?;
        let node =
            |number| Self { node: Some(Node { number, controllers: controllers.clone() }), ..Self::new() };
        Ok((1..=count).map(node).collect())
    }

    /// A line of its configuration.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "values are literals, numbers as well as texts")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Started as for work, not as for a quick test.
    #[must_use]
    pub fn for_measuring(mut self) -> Self {
        self.is_measured = true;
        self
    }

    /// Its clients are sent to this port: a proxy's.
    #[must_use]
    pub fn advertised_at(mut self, port: u16) -> Self {
        self.advertised = Some(port);
        self
    }

    /// One more entrance, for this user (SASL, PLAIN), whose clients are sent to this port.
    #[must_use]
    pub fn with_login(mut self, user: &str, password: &str, advertised: u16) -> Self {
        self.login = Some(Login { user: user.to_owned(), password: password.to_owned(), advertised });
        self
    }

    /// One more entrance, over TLS, whose clients are sent to this port.
    #[must_use]
    pub fn with_tls(mut self, certificate: &Certificate, advertised: u16) -> Self {
        let Certificate { certificate, key } = certificate;
        self.tls = Some(Tls { certificate: certificate.clone(), key: key.clone(), advertised });
        self
    }

    /// What the further entrances add to the configuration.
    fn entrances(&self, place: &Place) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        if let Some(Login { user, password, .. }) = &self.login {
            lines.push("listener.name.login.sasl.enabled.mechanisms=PLAIN".to_owned());
            lines.push(format!(
                "listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
                 required user_{user}=\"{password}\";"
            ));
        }
        if let Some(Tls { certificate, key, .. }) = &self.tls {
            let keys = fs::read_to_string(key)? + &fs::read_to_string(certificate)?;
            let store = place.write("keys.pem", &keys)?;
            lines.push("listener.name.secure.ssl.keystore.type=PEM".to_owned());
            lines.push(format!("listener.name.secure.ssl.keystore.location={}", store.display()));
        }
        Ok(lines)
    }

    /// The jars, and a formatted log to begin with, both made by `./dev setup`.
    fn home() -> Result<PathBuf> {
        let home = crate::cache().join("kafka");
        ensure!(
            home.join("pins").exists(),
            "Kafka is not installed: {} is missing; run ./dev setup",
            home.display()
        );
        Ok(home)
    }
}

impl Broker<Kafka> {
    /// What clients call its bootstrap server.
    pub fn bootstrap(&self) -> String {
        self.address()
    }

    /// Where the entrance for users is.
    pub fn login_address(&self) -> String {
        format!("127.0.0.1:{}", self.place().ports[LOGIN])
    }

    /// Where the entrance over TLS is.
    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.place().ports[SECURE])
    }
}

impl Service for Kafka {
    fn name(&self) -> String {
        super::name("kafka", self)
    }

    /// Clients, the controller, users, and TLS.
    fn ports(&self) -> usize {
        4
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let port = place.ports[0];
        let Node { number, controllers } =
            self.node.clone().unwrap_or_else(|| Node { number: 1, controllers: vec![place.ports[1]] });
        let controller = controllers[number - 1];
        let voters: Vec<String> =
            controllers.iter().zip(1..).map(|(port, number)| format!("{number}@127.0.0.1:{port}")).collect();
        let log = place.dir.join("data");
        // Formatting takes the tool two seconds each time.
        copy(&Self::home()?.join("log"), &log, place)?;
        if number > 1 {
            renumber(&log.join("meta.properties"), number)?;
        }
        let mut lines = vec![
            "process.roles=broker,controller".to_owned(),
            format!("node.id={number}"),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("log.dirs={}", log.display()),
        ];
        let mut listeners = vec![format!("CONTROLLER://127.0.0.1:{controller}")];
        let mut advertised = Vec::new();
        let entrances = [
            ("PLAINTEXT", port, Some(self.advertised.unwrap_or(port))),
            ("LOGIN", place.ports[LOGIN], self.login.as_ref().map(|login| login.advertised)),
            ("SECURE", place.ports[SECURE], self.tls.as_ref().map(|tls| tls.advertised)),
        ];
        for (name, port, sent_to) in entrances {
            if let Some(sent_to) = sent_to {
                listeners.push(format!("{name}://127.0.0.1:{port}"));
                advertised.push(format!("{name}://127.0.0.1:{sent_to}"));
            }
        }
        lines.push(format!("listeners={}", listeners.join(",")));
        lines.push(format!("advertised.listeners={}", advertised.join(",")));
        lines.extend(self.entrances(place)?);
        lines.extend(
            [
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,SECURE:SSL",
                "inter.broker.listener.name=PLAINTEXT",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "transaction.state.log.num.partitions=1",
                "share.coordinator.state.topic.replication.factor=1",
                "share.coordinator.state.topic.min.isr=1",
                "group.initial.rebalance.delay.ms=0",
                "auto.create.topics.enable=false",
            ]
            .map(str::to_owned),
        );
        lines.extend(self.settings.iter().map(|(name, value)| format!("{name}={value}")));
        place.write("server.properties", &(lines.join("\n") + "\n"))?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let home = Self::home()?;
        // One compiler and a simple collector shorten the start; neither is for measuring.
        let quick: &[&str] = &["-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
        let measured: &[&str] = &["-Xms1g", "-Xmx1g"];
        let machine = if self.is_measured { measured } else { quick };
        Ok(CommandLine::new("/usr/bin/java")
            .args(machine.iter().copied())
            .args(["-cp".to_owned(), format!("{}/libs/*", home.display())])
            .args(["kafka.Kafka".into(), place.dir.join("server.properties").to_string_lossy()]))
    }

    /// It knows of a broker: itself.
    fn is_ready(&self, place: &Place) -> bool {
        // Metadata, version 1, of no topics. The answer: its size, the number of the question, and the count of brokers.
        let question = b"\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00";
        probe::answer::<12>(place.port(), question).is_some_and(|said| said[8..] != [0; 4])
    }

    fn stop(&self) -> Stop {
        Stop::with(Signal::TERM)
    }
}

/// What was formatted for the first becomes another's. The broker gives the directory a new id.
fn renumber(file: &Path, number: usize) -> Result<()> {
    let formatted = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let others =
        formatted.lines().filter(|line| !line.starts_with("node.id=") && !line.starts_with("directory.id="));
    let lines: Vec<String> = others.map(str::to_owned).chain([format!("node.id={number}\n")]).collect();
    Ok(fs::write(file, lines.join("\n"))?)
}

fn copy(from: &Path, to: &Path, place: &Place) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    place.user.own(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&from, &to, place)?;
        } else {
            fs::copy(&from, &to)?;
            place.user.own(&to)?;
        }
    }
    Ok(())
}
