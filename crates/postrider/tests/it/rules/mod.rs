//! Each rule of the log as a scripted interleaving, beside the same script with the rule taken out, which must fail every time.
//!
//! The variants are made from the statements and parts that really run: a fragment of the SQL is replaced, or the same parts are
//! put together in the wrong order.

mod durable;
mod reading;
mod ring;
mod settling;
mod size;
mod taking;
mod turning;
mod waking;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::log::cursor::Cursor;
use postrider::log::progress::{self, Tenure};
use postrider::log::round::{self, Round};
use postrider::log::{Start, lease, session, sink};
use postrider_testkit::Database;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::options;

/// The statement with a fragment replaced; a fragment that is not there exactly once is a test that has rotted.
pub fn without(statement: &str, rule: &str, instead: &str) -> String {
    assert_eq!(statement.matches(rule).count(), 1, "the rule {rule:?} is not in the statement exactly once");
    statement.replace(rule, instead)
}

/// A reader driven by hand, one part at a time.
pub struct Hand {
    pub connection: PgConnection,
    pub tenure: Tenure,
    pub cursors: BTreeMap<i16, Cursor>,
    pub statement: String,
    pub page: i64,
    lanes: usize,
}

impl Hand {
    pub async fn open(database: &Database) -> Self {
        Self::open_sink(database, "by hand", Start::Earliest).await
    }

    pub async fn open_sink(database: &Database, name: &str, start: Start) -> Self {
        let mut connection = session::connect(&options(database)).await.unwrap();
        let tenure = sink::open(&mut connection, name, start).await.unwrap();
        let reader = Uuid::now_v7();
        lease::heartbeat(&mut connection, reader, name, tenure.sink, Duration::from_mins(10)).await.unwrap();
        let (tenure, cursors) = lease::balance(&mut connection, reader, &tenure, &[], &[])
            .await
            .unwrap()
            .0
            .expect("lanes were free");
        let lanes: i32 =
            sqlx::query_scalar("select postrider.lanes()").fetch_one(&mut connection).await.unwrap();
        Self {
            connection,
            tenure,
            cursors,
            statement: round::READ.to_owned(),
            page: 1000,
            lanes: usize::try_from(lanes).unwrap(),
        }
    }

    /// Reads a round without moving.
    pub async fn peek(&mut self) -> Round {
        round::read(&mut self.connection, &self.statement, self.lanes, &self.cursors, self.page)
            .await
            .unwrap()
    }

    /// Reads a round and moves past it; the types found, by lane.
    pub async fn look(&mut self) -> Vec<String> {
        let round = self.peek().await;
        self.move_past(&round)
    }

    pub fn move_past(&mut self, round: &Round) -> Vec<String> {
        self.cursors = round.pages.iter().map(|(lane, page)| (*lane, page.end.clone())).collect();
        round.pages.values().flat_map(|page| &page.records).map(|record| record.r#type.clone()).collect()
    }

    pub async fn settle(&mut self) {
        let settled = progress::append(&mut self.connection, &mut self.tenure, &self.cursors).await.unwrap();
        for cursor in self.cursors.values_mut() {
            cursor.bound.get_or_insert(settled.bound);
        }
    }

    /// Forgets what is in memory and goes on from what is stored.
    pub async fn resume(&mut self) {
        let stored = progress::load(&mut self.connection, self.tenure.sink, &self.tenure.name).await.unwrap();
        self.cursors = stored.into_iter().map(|(lane, stored)| (lane, stored.cursor)).collect();
    }

    /// Looks until a round finds nothing.
    pub async fn look_until_quiet(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let unfinished = self.cursors.values().any(|cursor| cursor.late.is_some());
            let found = self.look().await;
            if found.is_empty() && !unfinished {
                return all;
            }
            all.extend(found);
        }
    }

    /// Every cursor with another snapshot, as a wrong reader would have stored it.
    pub fn set_snapshot(&mut self, snapshot: &str) {
        for cursor in self.cursors.values_mut() {
            cursor.snapshot = Arc::from(snapshot);
        }
    }
}
