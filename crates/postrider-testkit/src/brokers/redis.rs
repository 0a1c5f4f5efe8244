//! Redis, as Debian has it.

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop, run_to_end};
use crate::tls::Certificate;

/// What a Redis server is started as. Nothing of it is durable unless [`Redis::set`] says so.
#[derive(Clone, Debug, Default)]
pub struct Redis {
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
        self.place().ports.get(1).map(|port| format!("127.0.0.1:{port}"))
    }

    /// What `redis-cli` says to a command, as JSON.
    pub async fn ask<S: Into<String>>(
        &self,
        words: impl IntoIterator<Item = S>,
    ) -> Result<serde_json::Value> {
        let mut command = std::process::Command::new("redis-cli");
        command.args(["-p", &self.port().to_string(), "--json", "-e"]);
        command.args(words.into_iter().map(Into::<String>::into));
        if let Some((_, password)) = self.service().settings.iter().find(|(name, _)| name == "requirepass") {
            command.env("REDISCLI_AUTH", password.trim_matches('"'));
        }
        let output = tokio::task::spawn_blocking(move || run_to_end(&mut command)).await??;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Service for Redis {
    fn name(&self) -> String {
        super::name("redis", &(&self.settings, &self.tls))
    }

    fn ports(&self) -> usize {
        if self.tls.is_some() { 2 } else { 1 }
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
        if let (Some([certificate, key]), Some(port)) = (&self.tls, place.ports.get(1)) {
            lines.extend([
                format!("tls-port {port}"),
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
        let program = Some("/usr/bin/redis-server").filter(|path| Path::new(path).exists());
        let program = program.context("Redis is not installed: run ./dev setup")?;
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
