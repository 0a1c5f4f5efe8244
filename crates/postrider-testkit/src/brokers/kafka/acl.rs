//! Who may do what. No client at hand can say it, so it is said in Kafka's own protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::super::Broker;
use super::Kafka;

/// `CreateAcls`, in the first version that brokers still take.
const CREATE_ACLS: [u8; 4] = [0, 30, 0, 1];
/// `DescribeAcls`, likewise.
const DESCRIBE_ACLS: [u8; 4] = [0, 29, 0, 1];
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
        let address = self.address();
        let rule = worded(user, topic, rule);
        tokio::task::spawn_blocking(move || {
            // One rule.
            let made =
                ask::<18>(&address, &question(CREATE_ACLS, &[&[0, 0, 0, 1], rule.as_slice()].concat()))?;
            ensure!(made[16..] == [0, 0], "the broker took no rule: {made:?}");
            // It is kept by then, and goes by it a moment later.
            let begun = Instant::now();
            while ask::<20>(&address, &question(DESCRIBE_ACLS, &rule))?[16..] == [0; 4] {
                ensure!(begun.elapsed() < Duration::from_mins(1), "the broker never goes by the rule");
            }
            Ok(())
        })
        .await?
    }
}

fn worded(user: &str, topic: &str, rule: u8) -> Vec<u8> {
    let mut words = vec![TOPIC];
    push(&mut words, topic);
    words.push(LITERAL);
    push(&mut words, &format!("User:{user}"));
    push(&mut words, "*");
    words.extend([ALL, rule]);
    words
}

fn question(which: [u8; 4], words: &[u8]) -> Vec<u8> {
    let mut body = which.to_vec();
    // The number of the question, and nobody's name.
    body.extend([0, 0, 0, 1, 0xff, 0xff]);
    body.extend(words);
    let mut question = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    question.extend(body);
    question
}

fn push(body: &mut Vec<u8>, text: &str) {
    body.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    body.extend(text.as_bytes());
}

/// The beginning of the answer: its size (4 bytes), the number of the question (4), a pause (4). Then, for a rule that was made, how many
/// results (4), and of the first what went wrong (2); for rules that were asked for, what went wrong (2), nothing in words (2), and of how many
/// things there are such rules (4).
fn ask<const N: usize>(address: &str, question: &[u8]) -> Result<[u8; N]> {
    let mut broker = TcpStream::connect(address)?;
    broker.set_read_timeout(Some(Duration::from_secs(20)))?;
    broker.write_all(question)?;
    let mut answer = [0; N];
    broker.read_exact(&mut answer)?;
    Ok(answer)
}
