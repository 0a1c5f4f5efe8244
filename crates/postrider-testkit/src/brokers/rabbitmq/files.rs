//! The files of a node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result};

use super::{RabbitMq, port_of};
use crate::server::Place;

/// What a node is called.
pub(super) fn node_name(node: usize) -> String {
    format!("testkit{node}@localhost")
}

impl RabbitMq {
    pub(super) fn write_files(&self, place: &Place, node: usize) -> Result<()> {
        for name in ["", "/etc", "/home", "/mnesia", "/logs", "/gen"] {
            let dir = place.dir.join(format!("n{node}{name}"));
            fs::create_dir(&dir)?;
            place.user.own(&dir)?;
        }
        let cookie = place.write(&format!("n{node}/home/.erlang.cookie"), "TESTKIT")?;
        fs::set_permissions(cookie, fs::Permissions::from_mode(0o400))?;
        let plugins = if self.has_management { "[rabbitmq_management].\n" } else { "[].\n" };
        place.write(&format!("n{node}/etc/enabled_plugins"), plugins)?;
        let mut lines = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", port_of(place, node, 0)),
            "log.console = true".to_owned(),
            "log.file = false".to_owned(),
            "vm_memory_high_watermark.absolute = 512MB".to_owned(),
            "disk_free_limit.absolute = 50MB".to_owned(),
        ];
        if self.has_management {
            lines.push("management.tcp.ip = 127.0.0.1".to_owned());
            lines.push(format!("management.tcp.port = {}", port_of(place, node, 3)));
        }
        if self.nodes > 1 {
            lines.push("cluster_formation.peer_discovery_backend = classic_config".to_owned());
            lines.extend((0..self.nodes).map(|peer| {
                format!("cluster_formation.classic_config.nodes.{} = {}", peer + 1, node_name(peer))
            }));
        }
        if let Some(given) = &self.tls {
            // Copied: the server may not see the place where they are.
            let mut paths = Vec::new();
            for (path, name) in given.iter().zip(["server.crt", "server.key"]) {
                let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                place.write(&format!("n{node}/etc/{name}"), &text)?;
                paths.push(self.home(place).join(format!("n{node}/etc/{name}")));
            }
            lines.extend([
                format!("listeners.ssl.1 = 127.0.0.1:{}", port_of(place, node, 2)),
                format!("ssl_options.certfile = {}", paths[0].display()),
                format!("ssl_options.keyfile = {}", paths[1].display()),
                "ssl_options.verify = verify_none".to_owned(),
            ]);
        }
        lines.extend(self.settings.iter().map(|(name, value)| format!("{name} = {value}")));
        place.write(&format!("n{node}/etc/rabbitmq.conf"), &(lines.join("\n") + "\n"))?;
        Ok(())
    }
}
