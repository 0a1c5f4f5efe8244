//! Who may do what. No client at hand can say it, so it is said in Kafka's own protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::Broker;
use super::Kafka;

/// `CreateAcls`, in the first version that brokers still take.
const CREATE_ACLS: [u8; 4] = [0, 30, 0, 1];
const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const ALL: u8 = 2;
const DENY: u8 = 2;
const ALLOW: u8 = 3;

impl Broker<Kafka> {
    /// The user may do everything with this topic. For a broker with an authorizer.
    pub async fn allow(&self, user: &str, topic: &str) -> Result<()> {
        self.rule(user, topic, ALLOW).await
    }

    /// The user may do nothing with this topic, whatever was allowed.
    pub async fn deny(&self, user: &str, topic: &str) -> Result<()> {
        self.rule(user, topic, DENY).await
    }

    async fn rule(&self, user: &str, topic: &str, rule: u8) -> Result<()> {
        let (address, question) = (self.address(), question(user, topic, rule));
        tokio::task::spawn_blocking(move || ask(&address, &question)).await?
    }
}

fn question(user: &str, topic: &str, rule: u8) -> Vec<u8> {
    let mut body = CREATE_ACLS.to_vec();
    // The number of the question, and nobody's name.
    body.extend([0, 0, 0, 1, 0xff, 0xff]);
    // One rule.
    body.extend([0, 0, 0, 1, TOPIC]);
    push(&mut body, topic);
    body.push(LITERAL);
    push(&mut body, &format!("User:{user}"));
    push(&mut body, "*");
    body.extend([ALL, rule]);
    let mut question = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    question.extend(body);
    question
}

fn push(body: &mut Vec<u8>, text: &str) {
    body.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    body.extend(text.as_bytes());
}

/// The answer: its size, the number of the question, a pause, how many results, and of the first what went wrong.
fn ask(address: &str, question: &[u8]) -> Result<()> {
    let mut broker = TcpStream::connect(address)?;
    broker.set_read_timeout(Some(Duration::from_secs(20)))?;
    broker.write_all(question)?;
    let mut answer = [0; 18];
    broker.read_exact(&mut answer)?;
    ensure!(answer[16..] == [0, 0], "the broker took no rule: {answer:?}");
    Ok(())
}
