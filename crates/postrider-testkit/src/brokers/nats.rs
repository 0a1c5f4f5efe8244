//! NATS with `JetStream`.

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{Broker, probe};
use crate::server::{CommandLine, Place, Service, Stop};
use crate::tls::Certificate;

/// What a NATS server is started as.
#[derive(Clone, Debug, Default)]
pub struct Nats {
    server_name: Option<String>,
    settings: Vec<(String, String)>,
    /// Of `JetStream`.
    stream_settings: Vec<(String, String)>,
}

impl Nats {
    /// With `JetStream`, and without any stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many that are a cluster, ready to be started together. `JetStream` serves when more than half of them do.
    pub fn cluster(count: usize) -> Result<Vec<Self>> {
        let ports = crate::ports::free(count)?;
        let routes: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let routes = routes.join(", ");
        let server = |(at, port): (usize, &u16)| {
            Self { server_name: Some(format!("n{at}")), ..Self::new() }
            .set(
                "cluster",
                format!("{{ name: testkit, listen: \"127.0.0.1:{port}\", no_advertise: true, routes: [ {routes} ] }}"),
            )
        };
        Ok(ports.iter().enumerate().map(server).collect())
    }

    /// A key of its configuration, with a value as the file has it.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "values are literals, numbers as well as texts")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// The same of what it has for `JetStream`.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "as above")]
    pub fn set_for_streams(mut self, name: &str, value: impl ToString) -> Self {
        self.stream_settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// It wants TLS, with this certificate.
    #[must_use]
    pub fn with_tls(self, certificate: &Certificate) -> Self {
        let Certificate { certificate, key } = certificate;
        let block = format!("{{ cert_file: {:?}, key_file: {:?} }}", certificate.display(), key.display());
        self.set("tls", block)
    }
}

impl Broker<Nats> {
    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }
}

impl Service for Nats {
    fn name(&self) -> String {
        super::name("nats", &(&self.server_name, &self.settings, &self.stream_settings))
    }

    /// Clients, and what it says about itself.
    fn ports(&self) -> usize {
        2
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let [clients, monitor] = [place.ports[0], place.ports[1]];
        let store = place.dir.join("js");
        let mut of_streams = vec![format!("store_dir: {:?}", store.display())];
        of_streams.extend(self.stream_settings.iter().map(|(name, value)| format!("{name}: {value}")));
        let mut lines = vec![
            format!("server_name: {}", self.server_name.as_deref().unwrap_or("testkit")),
            format!("listen: 127.0.0.1:{clients}"),
            format!("http: 127.0.0.1:{monitor}"),
            format!("jetstream: {{ {} }}", of_streams.join(", ")),
        ];
        lines.extend(self.settings.iter().map(|(name, value)| format!("{name}: {value}")));
        place.write("nats.conf", &(lines.join("\n") + "\n"))?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let program = crate::cache().join("nats/bin/nats-server");
        ensure!(program.exists(), "NATS is not installed: {} is missing; run ./dev setup", program.display());
        Ok(CommandLine::new(program).args(["-c".into(), place.dir.join("nats.conf").to_string_lossy()]))
    }

    /// Healthy is one whose `JetStream` has read everything.
    fn is_ready(&self, place: &Place) -> bool {
        let question = b"GET /healthz HTTP/1.0\r\n\r\n";
        probe::answer::<12>(place.ports[1], question).is_some_and(|said| said.ends_with(b" 200"))
    }

    fn stop(&self) -> Stop {
        Stop::with(Signal::TERM)
    }
}
