//! Kafka, one broker that is its own controller.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop};

/// What a Kafka broker is started as. Topics are made by whoever wants them.
#[derive(Clone, Debug, Default)]
pub struct Kafka {
    settings: Vec<(String, String)>,
}

impl Kafka {
    /// One broker with everything replicated once.
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of its configuration.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "values are literals, numbers as well as texts")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
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
}

impl Service for Kafka {
    fn name(&self) -> String {
        super::name("kafka", &self.settings)
    }

    /// Clients, and the controller.
    fn ports(&self) -> usize {
        2
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let [port, controller] = [place.ports[0], place.ports[1]];
        let log = place.dir.join("data");
        // Formatting takes the tool two seconds each time.
        copy(&Self::home()?.join("log"), &log, place)?;
        let mut lines = vec![
            "process.roles=broker,controller".to_owned(),
            "node.id=1".to_owned(),
            format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
            format!("log.dirs={}", log.display()),
            format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"),
            format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}"),
        ];
        lines.extend(
            [
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
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
        Ok(CommandLine::new("/usr/bin/java")
            .args(["-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
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
