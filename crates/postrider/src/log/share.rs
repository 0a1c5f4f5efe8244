//! Who should hold which lanes: a pure decision, the same for every reader that looks at the same facts.

use std::collections::BTreeMap;

use uuid::Uuid;

/// What a reader should do with its lanes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Lanes of nobody, or of somebody who is gone.
    pub claim: Vec<i16>,
    /// Lanes beyond a fair share.
    pub release: Vec<i16>,
}

/// Decides for `me`, given who holds each lane (`None`: nobody alive) and everybody who is alive and serves this sink.
///
/// Lanes are shared evenly; where they do not divide, the readers first in order of id get one more. With more readers than
/// lanes the surplus stands by.
pub fn decide(me: Uuid, holders: &BTreeMap<i16, Option<Uuid>>, alive: &[Uuid]) -> Decision {
    let mut readers: Vec<Uuid> = alive.to_vec();
    if !readers.contains(&me) {
        readers.push(me);
    }
    readers.sort_unstable();
    readers.dedup();
    let rank = readers.iter().position(|reader| *reader == me).unwrap_or(0);
    let share = holders.len() / readers.len() + usize::from(rank < holders.len() % readers.len());

    let mine: Vec<i16> =
        holders.iter().filter(|(_, holder)| **holder == Some(me)).map(|(lane, _)| *lane).collect();
    let free = holders.iter().filter(|(_, holder)| holder.is_none_or(|holder| !readers.contains(&holder)));
    Decision {
        claim: free.map(|(lane, _)| *lane).take(share.saturating_sub(mine.len())).collect(),
        release: mine.iter().skip(share).copied().collect(),
    }
}

/// As [`decide`], for a sink that one reader has to hold alone: whoever holds lanes already, else the first in order of id. The
/// others stand by.
pub fn decide_alone(me: Uuid, holders: &BTreeMap<i16, Option<Uuid>>, alive: &[Uuid]) -> Decision {
    let holding = holders.values().flatten().filter(|holder| alive.contains(holder)).min();
    let leader = holding.or_else(|| alive.iter().min()).copied().unwrap_or(me);
    if leader == me {
        return decide(me, holders, &[me]);
    }
    let mine = holders.iter().filter(|(_, holder)| **holder == Some(me)).map(|(lane, _)| *lane);
    Decision { claim: Vec::new(), release: mine.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    /// Whatever the start, readers that decide one after another end with every lane held and shares that differ by one at most.
    #[test]
    fn shares_become_even_from_any_start() {
        for lanes in [1_i16, 2, 4, 16] {
            for readers in 1..=6_u128 {
                for start in 0..20_u128 {
                    let alive: Vec<Uuid> = (1..=readers).map(reader).collect();
                    // Some lanes belong to the living, some to the dead (ids above), some to nobody.
                    let mut holders: BTreeMap<i16, Option<Uuid>> = (0..lanes)
                        .map(|lane| {
                            let who = (u128::try_from(lane).unwrap() * 7 + start) % (readers + 3);
                            (lane, (who > 0).then(|| reader(who)))
                        })
                        .collect();
                    for _ in 0..3 {
                        for &me in &alive {
                            let decision = decide(me, &holders, &alive);
                            for lane in decision.claim {
                                holders.insert(lane, Some(me));
                            }
                            for lane in decision.release {
                                holders.insert(lane, None);
                            }
                        }
                    }
                    let shares: Vec<usize> = alive
                        .iter()
                        .map(|me| holders.values().filter(|holder| **holder == Some(*me)).count())
                        .collect();
                    assert_eq!(shares.iter().sum::<usize>(), holders.len(), "{holders:?}");
                    let spread = shares.iter().max().unwrap() - shares.iter().min().unwrap();
                    assert!(spread <= 1, "{shares:?}");
                }
            }
        }
    }

    /// One holds everything, whoever else is there, and the next one follows when it is gone.
    #[test]
    fn a_sink_held_alone_has_one_holder() {
        let alive = [reader(3), reader(1), reader(2)];
        let mut holders: BTreeMap<i16, Option<Uuid>> = (0..4).map(|lane| (lane, None)).collect();
        holders.insert(2, Some(reader(2)));
        let claim = |me, holders: &BTreeMap<i16, Option<Uuid>>| decide_alone(me, holders, &alive);
        assert_eq!(claim(reader(1), &holders), Decision::default());
        assert_eq!(claim(reader(2), &holders), Decision { claim: vec![0, 1, 3], release: vec![] });
        holders.insert(2, Some(reader(9)));
        assert_eq!(claim(reader(2), &holders), Decision::default());
        assert_eq!(claim(reader(1), &holders).claim, [0, 1, 2, 3]);
    }
}
