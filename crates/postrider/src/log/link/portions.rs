//! Which lanes are read together, and where the next round begins.

use std::collections::BTreeMap;

use sqlx::{Connection as _, PgConnection};

use crate::log::cursor::Cursor;
use crate::log::error::Result;
use crate::log::page_size::Request;
use crate::log::round::{self, Budget, Round};

/// One lane of them, if it is there.
pub(super) fn alone(groups: &[BTreeMap<i16, Cursor>], lane: i16) -> Option<BTreeMap<i16, Cursor>> {
    let cursor = groups.iter().find_map(|group| group.get(&lane))?;
    Some(BTreeMap::from([(lane, cursor.clone())]))
}

/// Groups in portions of so many lanes at most, beginning with lane `first`.
pub(super) fn portions(
    groups: &[BTreeMap<i16, Cursor>],
    first: i16,
    lanes: usize,
) -> Vec<BTreeMap<i16, Cursor>> {
    let mut portions = Vec::new();
    for is_first in [true, false] {
        for group in groups {
            let part: Vec<_> = group.iter().filter(|(lane, _)| (**lane >= first) == is_first).collect();
            let portion = |part: &[(&i16, &Cursor)]| {
                part.iter().map(|(lane, cursor)| (**lane, (*cursor).clone())).collect()
            };
            portions.extend(part.chunks(lanes).map(portion));
        }
    }
    portions
}

/// Where the next round begins: with what found no room in this one, or lanes with little would always go before.
pub(super) fn next_lane(portions: &[BTreeMap<i16, Cursor>], rounds: &[Round]) -> i16 {
    let starved =
        rounds.iter().flat_map(|round| &round.pages).find(|(_, page)| page.is_starved).map(|(lane, _)| *lane);
    let unread = portions.get(rounds.len()).and_then(|portion| portion.keys().next().copied());
    starved.or(unread).unwrap_or_default()
}

/// Reads one round of every portion, until the budget is spent.
pub(super) async fn read(
    connection: &mut PgConnection,
    portions: &[BTreeMap<i16, Cursor>],
    lanes: usize,
    request: Request,
    mut budget: Budget,
) -> Result<Vec<Round>> {
    let page = request.page;
    if let [all] = portions {
        return Ok(vec![round::read_within(connection, round::READ, lanes, all, page, &mut budget).await?]);
    }
    // Lanes that were settled at different moments come together by being read under one snapshot.
    let mut together = connection.begin_with("begin isolation level repeatable read read only").await?;
    let mut rounds = Vec::with_capacity(portions.len());
    for portion in portions {
        rounds.push(round::read_within(&mut together, round::READ, lanes, portion, page, &mut budget).await?);
        if !budget.has(request.worth) {
            break;
        }
    }
    together.commit().await?;
    Ok(rounds)
}
