//! The connections of a sink: one, or one to each node of a cluster that keeps streams of ours.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::cluster::{Address, slot};
use super::config::RedisConfig;
use super::connection::{Connection, Limits, Name};
use crate::sink::{Message, Unavailable, UnavailableKind};

/// Connections that are ready. The key of the configured server's own is `None`.
pub(super) struct Nodes {
    /// The address that let us in, with user and password.
    server: String,
    connections: HashMap<Option<Address>, Connection>,
    /// Of the server that let us in; the others of a cluster are taken to be set up the same way.
    pub(super) limits: Limits,
}

/// Names of connections that were given up.
pub(super) type Names = HashMap<Option<Address>, Name>;

impl Nodes {
    /// Connects to the first configured server that lets it.
    pub(super) async fn open(config: &RedisConfig, old: &Names) -> Result<Self, Unavailable> {
        let mut trouble = None;
        for server in config.servers() {
            match Connection::open(config, server, None, old.get(&None)).await {
                Ok(first) => {
                    let limits = first.limits;
                    let connections = HashMap::from([(None, first)]);
                    return Ok(Self { server: server.to_owned(), connections, limits });
                }
                Err(why) => trouble = Some(why),
            }
        }
        Err(trouble.unwrap_or_else(|| Unavailable::new(UnavailableKind::Missing, "there is no address")))
    }

    /// How much is taken now: it may have been raised since.
    pub(super) async fn look(&mut self) -> Result<Limits, Unavailable> {
        if let Some(first) = self.connections.get_mut(&None) {
            first.look().await?;
            self.limits = first.limits;
        }
        Ok(self.limits)
    }

    /// Of these places of a batch, those that can be in one transaction: all, or, in a cluster, those whose streams are in one slot.
    pub(super) fn parts(&self, batch: &[Message<'_>], places: Vec<usize>) -> Vec<Vec<usize>> {
        if self.connections.get(&None).is_none_or(|first| first.slots.is_none()) {
            return vec![places];
        }
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut known: HashMap<u16, usize> = HashMap::new();
        for place in places {
            let at = *known.entry(slot(&batch[place].destination)).or_insert(parts.len());
            match parts.get_mut(at) {
                Some(part) => part.push(place),
                None => parts.push(vec![place]),
            }
        }
        parts
    }

    /// The one that keeps this stream.
    pub(super) async fn keeper(
        &mut self,
        config: &RedisConfig,
        old: &Names,
        stream: &str,
    ) -> Result<&mut Connection, Unavailable> {
        let slots = self.connections.get(&None).and_then(|first| first.slots.as_ref());
        let node = match slots {
            None => None,
            Some(slots) => Some(slots.node(slot(stream)).cloned().ok_or_else(|| {
                let why = format!("no node of the cluster has the slot of {stream:?}");
                Unavailable::new(UnavailableKind::Blocked, why)
            })?),
        };
        match self.connections.entry(node) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(free) => {
                let connection =
                    Connection::open(config, &self.server, free.key().as_ref(), old.get(free.key())).await?;
                Ok(free.insert(connection))
            }
        }
    }

    /// One connection to each node that keeps streams, or the only one.
    pub(super) async fn all(
        mut self,
        config: &RedisConfig,
    ) -> Result<impl Iterator<Item = Connection>, Unavailable> {
        let slots = self.connections.get(&None).and_then(|first| first.slots.clone());
        if let Some(slots) = slots {
            self.connections.clear();
            for node in slots.nodes() {
                let connection = Connection::open(config, &self.server, Some(node), None).await?;
                self.connections.insert(Some(node.clone()), connection);
            }
        }
        Ok(self.connections.into_values())
    }

    /// Ends them all, and remembers what they were called.
    pub(super) fn give_up(self, old: &mut Names) {
        for (node, connection) in self.connections {
            if let Some(name) = connection.name {
                old.insert(node, name);
            }
        }
    }
}
