//! What is sent together, and what has to wait.

use std::collections::HashMap;

use crate::sink::Message;

/// The keys of which an event was refused: nothing behind it is sent.
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

/// The places of a batch in rounds, each to be confirmed before the next is sent. Inside one, all events of a key go to one topic, and so
/// to one partition, which takes them in order or not at all. One that goes to another topic than the one before it of its key waits.
pub(super) fn rounds(batch: &[Message<'_>]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = vec![Vec::with_capacity(batch.len())];
    let mut last: HashMap<&str, (&str, usize)> = HashMap::new();
    // Most batches have one topic: nothing to wait for.
    let is_one = batch.windows(2).all(|pair| pair[0].destination == pair[1].destination);
    for (place, message) in batch.iter().enumerate() {
        let round = match message.record.key.as_deref() {
            Some(key) if !is_one => {
                let topic = message.destination.as_str();
                let (before, round) = last.entry(key).or_insert((topic, 0));
                if *before != topic {
                    (*before, *round) = (topic, *round + 1);
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
    use postrider::log::Record;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;
    use crate::sink::EventId;

    fn record(key: Option<&str>) -> Record {
        Record {
            seq: 1,
            lane: 0,
            id: Uuid::nil(),
            source_id: None,
            r#type: "a.b".to_owned(),
            entity: None,
            key: key.map(str::to_owned),
            tenant: None,
            payload: "{}".to_owned(),
            headers: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn places(events: &[(Option<&str>, &str)]) -> Vec<Vec<usize>> {
        let records: Vec<Record> = events.iter().map(|(key, _)| record(*key)).collect();
        let batch: Vec<Message<'_>> = records
            .iter()
            .zip(events)
            .map(|(record, (_, topic))| Message {
                record,
                id: EventId::of(record),
                destination: (*topic).to_owned(),
                content_type: "application/json",
                headers: Vec::new(),
                body: Vec::new(),
            })
            .collect();
        rounds(&batch)
    }

    #[test]
    fn a_key_that_goes_elsewhere_waits() {
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(places(&[(a, "x"), (b, "y"), (a, "x"), (None, "z")]), [vec![0, 1, 2, 3]]);
        assert_eq!(
            places(&[(a, "x"), (b, "y"), (a, "y"), (b, "y"), (a, "x")]),
            [vec![0, 1, 3], vec![2], vec![4]]
        );
        assert_eq!(places(&[(a, "x"), (b, "x"), (a, "y"), (b, "y")]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(places(&[(None, "x"), (None, "y")]), [vec![0, 1]]);
    }
}
