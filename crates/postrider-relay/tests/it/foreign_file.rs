//! A file that somebody else has written.

use std::fs;

use postrider_relay::UnavailableKind;
use postrider_relay::sinks::file::{FileConfig, FileSink};

use crate::scratch::Scratch;

#[tokio::test]
async fn what_is_no_event_is_not_cut_off() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    let noise: Vec<u8> =
        (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 | 0x80).collect();
    for foreign in [b"line1\nprecious", &b"{\n  \"a\": 1\n}"[..], b"1\n{} x", b"a\0", &noise] {
        fs::write(&path, foreign).unwrap();
        let why = FileSink::open(FileConfig::new(&path)).await.err().unwrap();
        assert_eq!(why.kind, UnavailableKind::Missing);
        let said = why.source.to_string();
        assert!(said.starts_with(path.to_str().unwrap()), "{said}");
        assert!(said.contains("ends with something that is no event"), "{said}");
        assert!(said.contains("name another path, or move the file away"), "{said}");
        assert!(fs::read(&path).unwrap() == foreign, "it was changed");
    }
}
