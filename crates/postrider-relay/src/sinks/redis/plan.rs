//! Which events of a batch go together in one transaction.

use std::collections::HashMap;

use crate::sink::Message;

/// The keys of a batch that were stopped, and where: at the first of their events that was refused.
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
        let key = message.record.key.as_deref();
        key.and_then(|key| self.0.get(key)).is_some_and(|first| *first < place)
    }
}

/// The places of a batch in groups, to be sent one after the other. Inside one, all events of a key go to one stream: whatever the
/// server holds against one of them it holds against all, so none of them can pass an earlier one.
pub(super) fn groups<'a>(batch: &'a [Message<'a>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
    let mut streams: HashMap<&str, &str> = HashMap::new();
    for (place, message) in batch.iter().enumerate() {
        if let Some(key) = message.record.key.as_deref() {
            let stream = message.destination.as_str();
            if *streams.entry(key).or_insert(stream) != stream {
                streams = HashMap::from([(key, stream)]);
                groups.push(Vec::new());
            }
        }
        if let Some(group) = groups.last_mut() {
            group.push(place);
        }
    }
    groups
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
            .map(|(record, (_, stream))| Message {
                record,
                id: EventId::of(record),
                destination: (*stream).to_owned(),
                content_type: "application/json",
                headers: Vec::new(),
                body: Vec::new(),
            })
            .collect();
        groups(&batch)
    }

    #[test]
    fn a_key_that_goes_elsewhere_begins_a_new_group() {
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(places(&[(a, "x"), (b, "y"), (a, "x"), (None, "z")]), [vec![0, 1, 2, 3]]);
        assert_eq!(places(&[(a, "x"), (b, "y"), (a, "y"), (b, "y")]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(places(&[(None, "x"), (None, "y")]), [vec![0, 1]]);
    }
}
