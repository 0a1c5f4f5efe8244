//! NATS, with a stream in files. The bare loop publishes and waits for confirmations, so many at a time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use postrider_testkit::{Broker as Server, Nats};
use tokio::task::JoinSet;

use crate::bare::{Bare, CONTENT_TYPE, TYPE};
use crate::compare::{Broker, Variant};
use crate::outage::{Heard, Listener};

const STREAM: &str = "events";

pub(crate) struct Measured(Server<Nats>);

impl Measured {
    /// With the settings of the sink.
    async fn context(&self) -> Result<Context> {
        let client = async_nats::connect(self.0.url()).await?;
        Ok(ContextBuilder::new().timeout(Duration::from_secs(10)).max_ack_inflight(10_000).build(client))
    }
}

impl Broker for Measured {
    const NAME: &'static str = "nats";
    const GOAL: f64 = 0.8;
    const EVENTS: u32 = 600_000;
    const VARIANTS: &'static [Variant] = &[
        Variant::new("100 in flight", 1, 100),
        Variant::new("500 in flight", 1, 500),
        Variant::new("1000 in flight", 1, 1000),
        Variant::new("4000 in flight", 1, 4000),
        Variant::new("2 connections, 500 in flight each", 2, 500),
    ];

    async fn start() -> Result<Self> {
        Ok(Self(Server::private(Nats::new()).await?))
    }

    fn sink(&self) -> String {
        format!("nats: {{ url: '{}', create: true }}", self.0.url())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn empty(&self) -> Result<()> {
        let context = self.context().await?;
        let _ = context.delete_stream(STREAM).await;
        // As the sink would make it.
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec![format!("{STREAM}.>")],
            discard: DiscardPolicy::New,
            num_replicas: 1,
            ..Config::default()
        };
        context.create_stream(config).await?;
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        Ok(self.context().await?.get_stream(STREAM).await?.cached_info().state.messages)
    }

    async fn publish(&self, variant: &Variant, messages: Bare) -> Result<()> {
        let mut publishers = JoinSet::new();
        for messages in messages.split(variant.channels) {
            let (context, most) = (self.context().await?, variant.in_flight);
            publishers.spawn(async move {
                let mut under_way = FuturesUnordered::new();
                for message in messages {
                    if under_way.len() == most {
                        under_way.next().await.context("nothing is under way")??;
                    }
                    let mut headers = HeaderMap::new();
                    headers.insert("Nats-Msg-Id", message.id.as_str());
                    headers.insert("Nats-Expected-Stream", STREAM);
                    headers.insert("Content-Type", CONTENT_TYPE);
                    let published = PublishMessage::build().payload(message.body.into()).headers(headers);
                    let confirmation = context.send_publish(format!("{STREAM}.{TYPE}"), published).await?;
                    under_way.push(confirmation.into_future());
                }
                while let Some(confirmed) = under_way.next().await {
                    confirmed?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = publishers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

impl Listener for Measured {
    async fn listen(&self, heard: Heard) -> Result<()> {
        let stream = self.context().await?.get_stream(STREAM).await?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::New,
            ack_policy: AckPolicy::None,
            ..pull::Config::default()
        };
        let mut messages = stream.create_consumer(config).await?.messages().await?;
        while let Some(message) = messages.next().await {
            heard.note(Self::NAME, &message?.payload);
        }
        anyhow::bail!("NATS has closed the subscription")
    }

    async fn crash(&self) -> Result<()> {
        self.0.crash().await
    }

    async fn revive(&self) -> Result<()> {
        self.0.start().await
    }
}
