//! `RabbitMQ`: the current one, which Debian 13 has, and the one of Debian 12.

mod files;

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::process::Process;
use crate::server::{CommandLine, Place, Service, Stop, StopTarget, run_to_end};
use crate::tls::Certificate;

/// Not the programs in `sbin`, which become the user `rabbitmq` and take the directories of the machine's own server.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// Ports of each node: clients, other nodes, clients over TLS, the management. One more is the name server's.
const PORTS: usize = 4;

/// Which `RabbitMQ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Edition {
    /// 4.x, in a tree of its own that `./dev setup` has made.
    #[default]
    Current,
    /// 3.10, of this machine.
    Old,
}

/// What a `RabbitMQ` server is started as.
#[derive(Clone, Debug)]
pub struct RabbitMq {
    edition: Edition,
    nodes: usize,
    settings: Vec<(String, String)>,
    tls: Option<[PathBuf; 2]>,
    has_management: bool,
}

impl Default for RabbitMq {
    fn default() -> Self {
        Self { edition: Edition::default(), nodes: 1, settings: Vec::new(), tls: None, has_management: false }
    }
}

impl RabbitMq {
    /// One node, user `guest` with the password `guest`.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`RabbitMq::new`], and the 3.10 of Debian 12.
    pub fn old() -> Self {
        Self { edition: Edition::Old, ..Self::default() }
    }

    /// So many nodes in one cluster.
    #[must_use]
    pub fn with_nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
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
        self.tls = Some([certificate.certificate.clone(), certificate.key.clone()]);
        self
    }

    /// It has its management, over HTTP.
    #[must_use]
    pub fn with_management(mut self) -> Self {
        self.has_management = true;
        self
    }

    /// The tree that the server sees as its root, or `None` if that is the machine's.
    fn root(&self) -> Option<PathBuf> {
        (self.edition == Edition::Current).then(|| crate::cache().join("rabbitmq/root"))
    }

    /// Where the server's own directory is, as the server sees it.
    fn home(&self, place: &Place) -> PathBuf {
        if self.root().is_some() { PathBuf::from("/srv") } else { place.dir.clone() }
    }

    fn environment(&self, place: &Place, node: usize) -> Vec<String> {
        let home = self.home(place).join(format!("n{node}"));
        let path = |name: &str| home.join(name).to_string_lossy().into_owned();
        [
            ("HOME", path("home")),
            ("RABBITMQ_NODENAME", files::node_name(node)),
            ("RABBITMQ_DIST_PORT", port_of(place, node, 1).to_string()),
            ("ERL_EPMD_PORT", place.ports[PORTS * self.nodes].to_string()),
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
        .map(|(name, value)| format!("{name}={value}"))
        .into()
    }

    /// A name server of its own, which every node needs, in the same process group. Without it a node starts one as a daemon, at the
    /// port of everybody's, and that outlives it.
    fn script(&self, place: &Place) -> String {
        let epmd = place.ports[PORTS * self.nodes];
        let (before, after) = if self.nodes == 1 { ("exec ", "") } else { ("", " &") };
        let mut lines = vec![format!("epmd -port {epmd} -address 127.0.0.1 &")];
        lines.extend((0..self.nodes).map(|node| {
            let words = self.environment(place, node).join("' '");
            format!("{before}env '{words}' {PROGRAMS}/rabbitmq-server{after}")
        }));
        lines.join("\n") + "\nwait\n"
    }
}

fn port_of(place: &Place, node: usize, at: usize) -> u16 {
    place.ports[PORTS * node + at]
}

impl Broker<RabbitMq> {
    /// Its address for clients.
    pub fn url(&self) -> String {
        self.url_of(0)
    }

    /// That of one node of several.
    pub fn url_of(&self, node: usize) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", port_of(self.place(), node, 0))
    }

    /// `127.0.0.1:PORT` where it speaks TLS.
    pub fn tls_address(&self) -> Option<String> {
        self.service().tls.as_ref().map(|_| format!("127.0.0.1:{}", port_of(self.place(), 0, 2)))
    }

    /// Where its management is, if it was started with it.
    pub fn management(&self) -> Option<String> {
        self.service().has_management.then(|| format!("http://127.0.0.1:{}", port_of(self.place(), 0, 3)))
    }

    /// The process of one node.
    pub fn node(&self, node: usize) -> Result<Process> {
        let path = self.place().dir.join(format!("n{node}/beam.pid"));
        let pid = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Process::find(pid.trim().parse()?).with_context(|| format!("node {node} is not running"))
    }

    /// `rabbitmqctl` for a server of this machine's own edition, as one would type it.
    pub fn control_line(&self) -> String {
        let wanted = ["HOME=", "RABBITMQ_NODENAME=", "ERL_EPMD_", "RABBITMQ_CONF_ENV_FILE="];
        let mut settings = self.service().environment(self.place(), 0);
        settings.retain(|setting| wanted.iter().any(|name| setting.starts_with(name)));
        format!("env {} {PROGRAMS}/rabbitmqctl -q", settings.join(" "))
    }

    /// What `rabbitmqctl` says to a command, as text.
    pub async fn control<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let (service, place) = (self.service(), self.place());
        let mut before = service.root().map_or_else(Vec::new, |root| place.user.inside(&root, &place.dir));
        before.extend(place.user.prefix());
        before.extend(["--".to_owned(), "env".to_owned()]);
        before.extend(service.environment(place, 0));
        let mut command = Command::new(&before[0]);
        command.args(&before[1..]).arg(format!("{PROGRAMS}/rabbitmqctl")).arg("-q");
        command.args(words.into_iter().map(Into::<String>::into)).current_dir(&place.dir);
        let output = tokio::task::spawn_blocking(move || run_to_end(&mut command)).await??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Service for RabbitMq {
    fn name(&self) -> String {
        let Self { edition, nodes, settings, tls, has_management } = self;
        super::name("rabbitmq", &(edition, nodes, settings, tls, has_management))
    }

    fn ports(&self) -> usize {
        PORTS * self.nodes + 1
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        (0..self.nodes).try_for_each(|node| self.write_files(place, node))
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let root = self.root();
        let program = Path::new(PROGRAMS).join("rabbitmq-server");
        let seen = root
            .as_ref()
            .map_or(program.clone(), |root| root.join(program.strip_prefix("/").unwrap_or(&program)));
        ensure!(seen.exists(), "RabbitMQ is not installed: run ./dev setup");
        let command = CommandLine::new("sh").args(["-c".to_owned(), self.script(place)]);
        Ok(match root {
            Some(root) => command.inside(&root, &place.dir),
            None => command,
        })
    }

    /// It listens when everything is in place, over TLS a moment later; then it greets.
    fn is_ready(&self, place: &Place) -> bool {
        (0..self.nodes).all(|node| {
            let greeting = probe::answer::<1>(port_of(place, node, 0), b"AMQP\x00\x00\x09\x01");
            let is_secure = || TcpStream::connect((Ipv4Addr::LOCALHOST, port_of(place, node, 2))).is_ok();
            greeting.is_some_and(|said| said == [1]) && (self.tls.is_none() || is_secure())
        })
    }

    /// The whole group: the script that was started waits for the node.
    fn stop(&self) -> Stop {
        Stop { target: StopTarget::Group, grace: Duration::from_secs(20), ..Stop::with(Signal::TERM) }
    }
}
