//! How much a stream holds.

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config, StorageType};

use crate::sink::{Refusal, RefusalKind};

/// What a stream in files counts beside a message with headers: its number, its time, the lengths of its parts, and a checksum.
const IN_FILES: usize = 34;
/// In memory: its number, and its time.
const IN_MEMORY: usize = 16;

/// The room in a stream that has nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    /// `max_bytes`, if there is a limit.
    most: Option<u64>,
    around: usize,
}

impl Room {
    pub(super) fn of(stream: &Config) -> Self {
        let around = match stream.storage {
            StorageType::File => IN_FILES,
            StorageType::Memory => IN_MEMORY,
        };
        Self { most: u64::try_from(stream.max_bytes).ok().filter(|most| *most > 0), around }
    }

    /// Why a message can never be there, if it cannot. To a stream that refuses what is new it would be full for ever; one that drops what is
    /// oldest would confirm it, and drop it at once, behind everything else.
    pub(super) fn refusal(self, subject: &str, headers: &HeaderMap, body: &[u8]) -> Option<Refusal> {
        let most = self.most?;
        let size = (self.around + subject.len() + length(headers) + body.len()) as u64;
        (size > most).then(|| Refusal {
            kind: RefusalKind::TooLarge,
            reason: format!(
                "{size} bytes with its headers, and the whole stream holds {most} (its max_bytes)"
            ),
        })
    }
}

/// As they are sent.
fn length(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let length = lines
        .map(|(name, value)| AsRef::<str>::as_ref(name).len() + value.as_str().len() + ": \r\n".len())
        .sum::<usize>();
    "NATS/1.0\r\n\r\n".len() + length
}
