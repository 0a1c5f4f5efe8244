//! Redis, with `appendfsync always`. The bare loop sends pipelines of XADD, without a transaction.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_testkit::{Broker as Server, Redis};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline};
use tokio::task::JoinSet;

use crate::bare::{Bare, CONTENT_TYPE, TYPE};
use crate::compare::{Broker, Variant};
use crate::outage::{Heard, Listener};

const STREAM: &str = "events:order";

pub(crate) struct Measured(Server<Redis>);

impl Measured {
    /// Redis begins to rewrite its file by itself too, and does so once at a time.
    async fn rewritten(&self) -> Result<()> {
        while self.0.say(["INFO", "persistence"]).await?.contains("aof_rewrite_in_progress:1") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Broker for Measured {
    const NAME: &'static str = "redis";
    const GOAL: f64 = 0.8;
    const VARIANTS: &'static [Variant] = &[
        Variant::new("100 in flight", 1, 100),
        Variant::new("500 in flight", 1, 500),
        Variant::new("1000 in flight", 1, 1000),
        Variant::new("2 connections, 500 in flight each", 2, 500),
    ];

    async fn start() -> Result<Self> {
        Ok(Self(Server::private(Redis::durable()).await?))
    }

    fn sink(&self) -> String {
        format!("redis: {{ url: '{}' }}", self.0.url())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn empty(&self) -> Result<()> {
        self.0.ask(["FLUSHALL"]).await?;
        // What was appended until now is not what the next one is to be charged for.
        self.rewritten().await?;
        self.0.ask(["BGREWRITEAOF"]).await?;
        self.rewritten().await
    }

    async fn count(&self) -> Result<u64> {
        self.0.ask(["XLEN", STREAM]).await?.as_u64().context("XLEN is a number")
    }

    async fn publish(&self, variant: &Variant, messages: Bare) -> Result<()> {
        let mut publishers = JoinSet::new();
        for mut messages in messages.split(variant.channels) {
            let (client, at_once) = (Client::open(self.url())?, variant.in_flight);
            publishers.spawn(async move {
                let mut connection = connection(&client).await?;
                loop {
                    let mut pipeline = Pipeline::new();
                    for message in messages.by_ref().take(at_once) {
                        pipeline.cmd("XADD").arg(STREAM).arg("*").arg("id").arg(message.id);
                        pipeline.arg("type").arg(TYPE).arg("key").arg(message.key);
                        pipeline.arg("content-type").arg(CONTENT_TYPE).arg("data").arg(message.body);
                    }
                    if pipeline.is_empty() {
                        return anyhow::Ok(());
                    }
                    let _: Vec<String> = pipeline.query_async(&mut connection).await?;
                }
            });
        }
        while let Some(ended) = publishers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// As patient as the sink's.
async fn connection(client: &Client) -> Result<MultiplexedConnection> {
    let patience = Some(Duration::from_secs(10));
    let how = AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    Ok(client.get_multiplexed_async_connection_with_config(&how).await?)
}

impl Listener for Measured {
    async fn listen(&self, heard: Heard) -> Result<()> {
        let mut connection = connection(&Client::open(self.url())?).await?;
        let mut last = "0-0".to_owned();
        loop {
            // Asked again and again: a connection that waits for the server could not be given up.
            let found: Vec<(String, HashMap<String, Vec<u8>>)> = redis::cmd("XRANGE")
                .arg(STREAM)
                .arg(format!("({last}"))
                .arg("+")
                .arg("COUNT")
                .arg(1000)
                .query_async(&mut connection)
                .await?;
            if let Some((id, _)) = found.last() {
                last.clone_from(id);
            }
            for (_, fields) in &found {
                heard.note(Self::NAME, fields.get("data").map_or(&[], Vec::as_slice));
            }
            if found.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn crash(&self) -> Result<()> {
        self.0.crash().await
    }

    async fn revive(&self) -> Result<()> {
        self.0.start().await
    }
}
