//! For sinks whose server judges each message by itself: of a key, one event after the other.

use std::collections::HashMap;

use crate::sink::Message;

/// The places of a batch: those of one key together and in order, each without a key alone.
pub(super) fn chains(batch: &[Message<'_>]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (place, message) in batch.iter().enumerate() {
        let next = chains.len();
        let chain = message.record.key.as_deref().map_or(next, |key| *known.entry(key).or_insert(next));
        match chains.get_mut(chain) {
            Some(chain) => chain.push(place),
            None => chains.push(vec![place]),
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::super::planned::{batch, records};
    use super::*;

    #[test]
    fn the_events_of_a_key_are_one_chain() {
        let (a, b) = (Some("a"), Some("b"));
        let events = [(a, "x"), (None, "x"), (b, "x"), (a, "y"), (None, "x"), (a, "x")];
        let expected = [vec![0, 3, 5], vec![1], vec![2], vec![4]];
        assert_eq!(chains(&batch(&records(&events), &events)), expected);
    }
}
