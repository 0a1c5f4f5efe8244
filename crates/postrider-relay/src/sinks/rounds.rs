//! For sinks that send many events of a key at once: what is sent together, and what has to wait.

use std::collections::HashMap;

use crate::sink::Message;

/// The keys of a batch of which an event was refused: nothing behind it is sent.
#[derive(Default)]
pub(super) struct Stops<'a>(HashMap<&'a str, usize>);

impl<'a> Stops<'a> {
    /// The event at this place was refused.
    pub(super) fn stop(&mut self, message: &'a Message<'a>, place: usize) {
        if let Some(key) = message.record.key.as_deref() {
            let first = self.0.entry(key).or_insert(place);
            *first = place.min(*first);
        }
    }

    /// Whether an earlier event of its key was refused.
    pub(super) fn is_behind(&self, message: &Message<'_>, place: usize) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let key = message.record.key.as_deref();
        key.and_then(|key| self.0.get(key)).is_some_and(|first| *first < place)
    }
}

/// The places of a batch in rounds, each to be confirmed before the next is sent. Inside one, all events of a key go to one destination,
/// which takes them in order or not at all. One that goes elsewhere than the one before it of its key waits.
pub(super) fn rounds(batch: &[Message<'_>]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = vec![Vec::with_capacity(batch.len())];
    let mut last: HashMap<&str, (&str, usize)> = HashMap::new();
    // Most batches have one destination: nothing to wait for.
    let is_one = batch.windows(2).all(|pair| pair[0].destination == pair[1].destination);
    for (place, message) in batch.iter().enumerate() {
        let round = match message.record.key.as_deref() {
            Some(key) if !is_one => {
                let destination = message.destination.as_str();
                let (before, round) = last.entry(key).or_insert((destination, 0));
                if *before != destination {
                    (*before, *round) = (destination, *round + 1);
                }
                *round
            }
            _ => 0,
        };
        match rounds.get_mut(round) {
            Some(round) => round.push(place),
            // The events of a key advance one round at a time.
            None => rounds.push(vec![place]),
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::super::planned::{Events, batch, records};
    use super::*;

    #[test]
    fn a_key_that_goes_elsewhere_waits() {
        let (a, b) = (Some("a"), Some("b"));
        let cases: [(&Events<'_>, &[&[usize]]); 4] = [
            (&[(a, "x"), (b, "y"), (a, "x"), (None, "z")], &[&[0, 1, 2, 3]]),
            (&[(a, "x"), (b, "y"), (a, "y"), (b, "y"), (a, "x")], &[&[0, 1, 3], &[2], &[4]]),
            (&[(a, "x"), (b, "x"), (a, "y"), (b, "y")], &[&[0, 1], &[2, 3]]),
            (&[(None, "x"), (None, "y")], &[&[0, 1]]),
        ];
        for (events, expected) in cases {
            assert_eq!(rounds(&batch(&records(events), events)), expected, "{events:?}");
        }
    }

    #[test]
    fn a_key_stops_at_the_first_of_its_events_that_was_refused() {
        let (a, b) = (Some("a"), Some("b"));
        let events = [(a, "x"), (b, "x"), (a, "x"), (None, "x"), (a, "y"), (b, "x"), (None, "x")];
        let records = records(&events);
        let batch = batch(&records, &events);
        let mut stops = Stops::default();
        for refused in [4, 2, 3] {
            stops.stop(&batch[refused], refused);
        }
        let behind = |place: &usize| stops.is_behind(&batch[*place], *place);
        assert_eq!((0..batch.len()).filter(behind).collect::<Vec<_>>(), [4]);
    }
}
