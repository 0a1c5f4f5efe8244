//! Redis, as Debian has it, and Valkey.

use std::path::Path;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop, run_to_end};
use crate::tls::Certificate;

/// What a Redis server is started as. Nothing of it is durable unless [`Redis::set`] says so.
#[derive(Clone, Debug, Default)]
pub struct Redis {
    is_valkey: bool,
    is_clustered: bool,
    settings: Vec<(String, String)>,
    tls: Option<[String; 2]>,
}

impl Redis {
    /// In memory alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything is on the disk before it is confirmed.
    pub fn durable() -> Self {
        Self::new().set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Valkey in its place.
    #[must_use]
    pub fn valkey(self) -> Self {
        Self { is_valkey: true, ..self }
    }

    /// A node of a cluster, which has no slots yet and knows no other.
    #[must_use]
    pub fn clustered(self) -> Self {
        Self { is_clustered: true, ..self }
    }

    /// A line of its configuration.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "values are literals, numbers as well as texts")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// It speaks TLS at a second port, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, certificate: &Certificate) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        self.tls = Some([text(&certificate.certificate), text(&certificate.key)]);
        self
    }
}

impl Broker<Redis> {
    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// `127.0.0.1:PORT` where it speaks TLS.
    pub fn tls_address(&self) -> Option<String> {
        self.service().tls.as_ref().map(|_| format!("127.0.0.1:{}", self.place().ports[1]))
    }

    /// Where it speaks to other nodes.
    pub(super) fn bus_port(&self) -> u16 {
        self.place().ports[2]
    }

    /// What `redis-cli` says to a command, as JSON.
    pub async fn ask<S: Into<String>>(
        &self,
        words: impl IntoIterator<Item = S>,
    ) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.say(words).await?)?)
    }

    /// What it says as a text: reports such as `INFO` are no JSON.
    pub async fn say<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = std::process::Command::new("redis-cli");
        command.args(["-p", &self.port().to_string(), "--json", "-e"]);
        command.args(words.into_iter().map(Into::<String>::into));
        if let Some((_, password)) = self.service().settings.iter().find(|(name, _)| name == "requirepass") {
            command.env("REDISCLI_AUTH", password.trim_matches('"'));
        }
        let output = tokio::task::spawn_blocking(move || run_to_end(&mut command)).await??;
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Service for Redis {
    fn name(&self) -> String {
        super::name("redis", &(self.is_valkey, self.is_clustered, &self.settings, &self.tls))
    }

    /// Clients, clients over TLS, and other nodes.
    fn ports(&self) -> usize {
        3
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let dir = place.dir.display();
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", place.port()),
            format!("dir \"{dir}\""),
            "save \"\"".to_owned(),
            "daemonize no".to_owned(),
        ];
        if self.is_clustered {
            lines.extend([
                "cluster-enabled yes".to_owned(),
                format!("cluster-port {}", place.ports[2]),
                "cluster-announce-ip 127.0.0.1".to_owned(),
                "cluster-node-timeout 15000".to_owned(),
            ]);
        }
        if let Some([certificate, key]) = &self.tls {
            lines.extend([
                format!("tls-port {}", place.ports[1]),
                format!("tls-cert-file \"{certificate}\""),
                format!("tls-key-file \"{key}\""),
                format!("tls-ca-cert-file \"{certificate}\""),
                "tls-auth-clients no".to_owned(),
            ]);
        }
        lines.extend(self.settings.iter().map(|(name, value)| format!("{name} {value}")));
        place.write("redis.conf", &(lines.join("\n") + "\n"))?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let program = if self.is_valkey {
            crate::cache().join("valkey/valkey-server")
        } else {
            "/usr/bin/redis-server".into()
        };
        ensure!(program.exists(), "{} is not installed: run ./dev setup", program.display());
        Ok(CommandLine::new(program).arg(place.dir.join("redis.conf").to_string_lossy()))
    }

    /// One that wants a password is ready too; one that still reads its file is not.
    fn is_ready(&self, place: &Place) -> bool {
        probe::answer::<4>(place.port(), b"PING\r\n").is_some_and(|said| said == *b"+PON" || said == *b"-NOA")
    }

    fn stop(&self) -> Stop {
        Stop::with(Signal::TERM)
    }
}
