//! The answers to a batch, as they come in.

use rdkafka::error::RDKafkaErrorCode;

/// What became of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nobody knows.
    None,
    /// The brokers have it.
    Confirmed,
    /// They, or the client library, say no.
    Failed(RDKafkaErrorCode),
}

/// Counts the answers to what was sent last. Those to anything before are not counted: a delivery may be given up in its midst.
#[derive(Default)]
pub(super) struct Tally {
    generation: u32,
    answers: Vec<Answer>,
    /// Not yet answered.
    open: usize,
    /// No more will be sent: it is of interest when the last answer comes.
    is_complete: bool,
    /// The library's queue was full: every answer is of interest.
    wants_room: bool,
}

/// What goes with a message and comes back with its answer: which batch, which place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    generation: u32,
    place: u32,
}

impl Ticket {
    #[expect(clippy::cast_possible_truncation, reason = "it is taken apart as it was put together")]
    pub(super) fn from_number(number: usize) -> Self {
        let number = number as u64;
        Self { generation: (number >> 32) as u32, place: number as u32 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a pointer has 64 bits wherever this is built")]
    pub(super) fn number(self) -> usize {
        (u64::from(self.generation) << 32 | u64::from(self.place)) as usize
    }
}

impl Tally {
    /// Begins anew, for so many messages.
    pub(super) fn begin(&mut self, messages: usize) {
        *self = Self {
            generation: self.generation.wrapping_add(1),
            answers: vec![Answer::None; messages],
            ..Self::default()
        };
    }

    /// For the message at this place, which is about to be sent.
    pub(super) fn ticket(&mut self, place: usize) -> Ticket {
        self.open += 1;
        Ticket { generation: self.generation, place: u32::try_from(place).unwrap_or(u32::MAX) }
    }

    /// It could not be sent after all.
    pub(super) fn take_back(&mut self) {
        self.open -= 1;
    }

    pub(super) fn want_room(&mut self) {
        self.wants_room = true;
    }

    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    pub(super) fn is_answered(&self) -> bool {
        self.open == 0
    }

    /// Whether somebody waits for this one.
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) -> bool {
        let place = self.answers.get_mut(ticket.place as usize);
        let Some(place) = place.filter(|_| ticket.generation == self.generation) else { return false };
        *place = answer;
        self.open -= 1;
        std::mem::take(&mut self.wants_room) || (self.is_complete && self.open == 0)
    }

    /// What is known by now.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_to_what_was_sent_last_is_of_interest() {
        let mut tally = Tally::default();
        tally.begin(2);
        let old = tally.ticket(0);
        tally.begin(2);
        let [first, second] = [tally.ticket(0), tally.ticket(1)];
        tally.complete();
        assert_eq!(Ticket::from_number(second.number()), second);
        assert!(!tally.answer(old, Answer::Confirmed));
        assert!(!tally.answer(second, Answer::Confirmed));
        assert!(!tally.is_answered());
        assert!(tally.answer(first, Answer::Failed(RDKafkaErrorCode::MessageTimedOut)));
        assert!(tally.is_answered());
        assert_eq!(tally.answers(), [Answer::Failed(RDKafkaErrorCode::MessageTimedOut), Answer::Confirmed]);
    }

    #[test]
    fn whoever_waits_for_room_hears_of_the_next_answer() {
        let mut tally = Tally::default();
        tally.begin(3);
        let [first, second] = [tally.ticket(0), tally.ticket(1)];
        let _ = tally.ticket(2);
        tally.take_back();
        tally.want_room();
        assert!(tally.answer(first, Answer::Confirmed));
        assert!(!tally.answer(second, Answer::Confirmed));
    }
}
