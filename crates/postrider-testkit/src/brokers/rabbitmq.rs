//! `RabbitMQ`, as Debian has it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop, StopTarget, run_to_end};
use crate::tls::Certificate;

/// Not the programs in `sbin`, which become the user `rabbitmq` and take the directories of the machine's own server.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// A name server of its own, which every node needs, in the same process group. Without it the node starts one as a daemon, at the
/// port of everybody's, and that outlives it.
const SCRIPT: &str = r#"epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0""#;

/// What a `RabbitMQ` server is started as.
#[derive(Clone, Debug, Default)]
pub struct RabbitMq {
    settings: Vec<(String, String)>,
    tls: Option<[String; 2]>,
}

impl RabbitMq {
    /// One node, user `guest` with the password `guest`.
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

    /// It speaks TLS at a second port, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, certificate: &Certificate) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        self.tls = Some([text(&certificate.certificate), text(&certificate.key)]);
        self
    }

    fn environment(place: &Place) -> Vec<(&'static str, String)> {
        let path = |name: &str| place.dir.join(name).to_string_lossy().into_owned();
        vec![
            ("HOME", path("home")),
            ("RABBITMQ_NODENAME", "testkit@localhost".to_owned()),
            ("RABBITMQ_DIST_PORT", place.ports[1].to_string()),
            ("ERL_EPMD_PORT", place.ports[2].to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_CONF_ENV_FILE", path("etc/none")),
            ("RABBITMQ_CONFIG_FILE", path("etc/rabbitmq")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", path("etc/advanced")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path("etc/enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", path("mnesia")),
            ("RABBITMQ_LOG_BASE", path("logs")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", path("gen")),
            ("RABBITMQ_PID_FILE", path("beam.pid")),
            // Without the spinning that Erlang does while it waits for work.
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
                    .to_owned(),
            ),
        ]
    }
}

impl Broker<RabbitMq> {
    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// `127.0.0.1:PORT` where it speaks TLS.
    pub fn tls_address(&self) -> Option<String> {
        self.service().tls.as_ref().map(|_| format!("127.0.0.1:{}", self.place().ports[3]))
    }

    /// What `rabbitmqctl` says to a command, as text.
    pub async fn control<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command: Command = self.place().user.command(Path::new(PROGRAMS).join("rabbitmqctl"));
        command.arg("-q").args(words.into_iter().map(Into::<String>::into));
        command.envs(RabbitMq::environment(self.place())).current_dir(&self.place().dir);
        let output = tokio::task::spawn_blocking(move || run_to_end(&mut command)).await??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Service for RabbitMq {
    fn name(&self) -> String {
        super::name("rabbitmq", &(&self.settings, &self.tls))
    }

    /// Clients, other nodes, the name server, and clients over TLS.
    fn ports(&self) -> usize {
        4
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        for name in ["etc", "home", "mnesia", "logs", "gen"] {
            let dir = place.dir.join(name);
            fs::create_dir(&dir)?;
            place.user.own(&dir)?;
        }
        let cookie = place.write("home/.erlang.cookie", "TESTKIT")?;
        fs::set_permissions(cookie, fs::Permissions::from_mode(0o400))?;
        place.write("etc/enabled_plugins", "[].\n")?;
        let mut lines = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", place.port()),
            "log.console = true".to_owned(),
            "log.file = false".to_owned(),
            "vm_memory_high_watermark.absolute = 512MB".to_owned(),
            "disk_free_limit.absolute = 50MB".to_owned(),
        ];
        if let Some([certificate, key]) = &self.tls {
            lines.extend([
                format!("listeners.ssl.1 = 127.0.0.1:{}", place.ports[3]),
                format!("ssl_options.certfile = {certificate}"),
                format!("ssl_options.keyfile = {key}"),
                "ssl_options.verify = verify_none".to_owned(),
            ]);
        }
        lines.extend(self.settings.iter().map(|(name, value)| format!("{name} = {value}")));
        place.write("etc/rabbitmq.conf", &(lines.join("\n") + "\n"))?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let program = Path::new(PROGRAMS).join("rabbitmq-server");
        ensure!(program.exists(), "RabbitMQ is not installed: run ./dev setup");
        let command = CommandLine::new("sh").args(["-c".into(), SCRIPT.into(), program.to_string_lossy()]);
        Ok(Self::environment(place).iter().fold(command, |command, (name, value)| command.env(name, value)))
    }

    /// It listens when everything is in place; then it greets.
    fn is_ready(&self, place: &Place) -> bool {
        probe::answer::<1>(place.port(), b"AMQP\x00\x00\x09\x01").is_some_and(|said| said == [1])
    }

    /// The whole group: the script that was started waits for the node.
    fn stop(&self) -> Stop {
        Stop { target: StopTarget::Group, grace: Duration::from_secs(20), ..Stop::with(Signal::TERM) }
    }
}
