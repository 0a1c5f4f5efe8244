//! Lines in a file: whole, once, in order, whatever happens to the disk and to us.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::file::{FileConfig, FileSink, Fsync};
use postrider_relay::units::Size;
use postrider_relay::{
    EnvelopeKind, Message, Outcome, Preparer, Report, Sink, SinkSettings, Unavailable, UnavailableKind,
};
use postrider_testkit::{Process, Signal};
use proptest::prelude::*;

use crate::scratch::Scratch;
use crate::written::{any_record, cases, message, text, to_null, with_payload};

fn plain() -> Preparer {
    Preparer::new(&SinkSettings { envelope: EnvelopeKind::Plain, ..to_null() }).unwrap()
}

/// Events whose lines are numbers.
fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<Record> {
    numbers.into_iter().map(|number| with_payload(number.to_string())).collect()
}

async fn open(config: FileConfig) -> Result<FileSink, Unavailable> {
    FileSink::open(config).await
}

async fn deliver(sink: &mut FileSink, records: &[Record]) -> Report {
    let mut preparer = plain();
    let batch: Vec<_> = records.iter().map(|record| message(&mut preparer, record)).collect();
    sink.deliver(&batch).await
}

async fn delivered(sink: &mut FileSink, records: &[Record]) {
    let report = deliver(sink, records).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    assert_eq!(report.outcomes, vec![Outcome::Delivered; records.len()]);
}

async fn close(sink: FileSink) {
    Box::new(sink).close().await.unwrap();
}

fn numbers_in(path: &Path) -> Vec<u32> {
    fs::read_to_string(path).unwrap().lines().map(|line| line.trim().parse().unwrap()).collect()
}

#[tokio::test]
async fn a_file_is_appended_to() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    for fsync in [Fsync::Batch, Fsync::Always, Fsync::Never] {
        let mut sink = open(FileConfig { fsync, ..FileConfig::new(&path) }).await.unwrap();
        delivered(&mut sink, &numbered(0..3)).await;
        delivered(&mut sink, &numbered(3..4)).await;
        close(sink).await;
    }
    assert_eq!(numbers_in(&path), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
}

#[tokio::test]
async fn a_torn_line_is_cut_at_opening() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    let long = format!("[{{\"a\": \"{}", "ä".repeat(100_000));
    let zeros = "\0".repeat(200_000);
    for (before, after) in [
        ("1\n2\n3", "1\n2\n"),
        ("1", ""),
        ("", ""),
        ("1\n", "1\n"),
        (&format!("1\n{long}"), "1\n"),
        (&long, ""),
        ("1\n{\"a\":tru", "1\n"),
        ("1\n\"\\u00", "1\n"),
        // The machine crashed: the file has its new length, and not all of its bytes.
        (&format!("1\n{{\"a\"{zeros}"), "1\n"),
        (&zeros, ""),
        (&format!("{long}\n"), &format!("{long}\n")),
    ] {
        fs::write(&path, before).unwrap();
        let mut sink = open(FileConfig::new(&path)).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
        delivered(&mut sink, &numbered([9])).await;
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{after}9\n"));
        close(sink).await;
    }
}

#[tokio::test]
async fn a_full_file_is_numbered_and_old_ones_are_removed() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    fs::write(scratch.join("events.ndjson.backup"), "not ours").unwrap();
    fs::write(scratch.join("events.ndjson.000007"), "100\n").unwrap();
    let config = FileConfig { rotate: Some(Size(20)), keep: NonZeroU32::new(2), ..FileConfig::new(&path) };
    let mut sink = open(config).await.unwrap();
    for batch in 0..4 {
        delivered(&mut sink, &numbered(100 + batch * 5..105 + batch * 5)).await;
    }
    let mut names: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["events.ndjson", "events.ndjson.000009", "events.ndjson.000010", "events.ndjson.backup"]
    );
    assert_eq!(numbers_in(&scratch.join("events.ndjson.000010")), [110, 111, 112, 113, 114]);
    assert_eq!(numbers_in(&path), [115, 116, 117, 118, 119]);
}

/// They have the names of full files, and are somebody else's.
#[tokio::test]
async fn files_of_others_with_a_number_are_neither_counted_nor_removed() {
    let scratch = Scratch::new();
    let path = scratch.join("x");
    let others = ["x.20300131", "x.000003", "x.18446744073709551615"].map(|name| scratch.join(name));
    fs::write(&others[0], "my invoices\n").unwrap();
    fs::write(&others[1], "").unwrap();
    fs::write(&others[2], "1\nno line").unwrap();
    // Another sink's.
    let neighbour = scratch.join("x.000002");
    let mut other = open(FileConfig::new(&neighbour)).await.unwrap();
    delivered(&mut other, &numbered(0..3)).await;
    let config = FileConfig { rotate: Some(Size(20)), keep: NonZeroU32::new(1), ..FileConfig::new(&path) };
    let mut sink = open(config).await.unwrap();
    for batch in 0..5 {
        delivered(&mut sink, &numbered(100 + batch * 5..105 + batch * 5)).await;
    }
    assert!(others.iter().all(|other| other.exists()), "{others:?}");
    assert_eq!(fs::read_to_string(&others[0]).unwrap(), "my invoices\n");
    assert_eq!(numbers_in(&neighbour), [0, 1, 2]);
    assert_eq!(numbers_in(&scratch.join("x.000006")), [115, 116, 117, 118, 119]);
    assert!(!scratch.join("x.000005").exists(), "of its own, one is kept");
}

#[tokio::test]
async fn a_file_that_was_moved_or_cut_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    let mut sink = open(FileConfig::new(&path)).await.unwrap();
    delivered(&mut sink, &numbered([1])).await;
    fs::rename(&path, scratch.join("moved")).unwrap();
    delivered(&mut sink, &numbered([2])).await;
    assert_eq!((numbers_in(&scratch.join("moved")), numbers_in(&path)), (vec![1], vec![2]));
    fs::remove_file(&path).unwrap();
    delivered(&mut sink, &numbered([3])).await;
    assert_eq!(numbers_in(&path), [3]);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    delivered(&mut sink, &numbered([4])).await;
    assert_eq!(numbers_in(&path), [4]);
}

#[tokio::test]
async fn trouble_has_its_kind() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("directory")).unwrap();
    for (path, kind, reason) in [
        (scratch.join("none/events.ndjson"), UnavailableKind::Missing, "cannot open"),
        (scratch.join("directory"), UnavailableKind::Missing, "is no regular file"),
        // Nobody may write here, not even root.
        ("/proc/sys/kernel/ostype".into(), UnavailableKind::Forbidden, "cannot open"),
        ("/dev/full".into(), UnavailableKind::Missing, "is no regular file"),
    ] {
        let why = open(FileConfig::new(&path)).await.err().unwrap();
        assert_eq!(why.kind, kind, "{}", path.display());
        assert!(why.source.to_string().contains(reason), "{}", why.source);
        assert!(why.source.to_string().contains(path.to_str().unwrap()), "{}", why.source);
    }
    // What goes wrong later too.
    let path = scratch.join("directory/events.ndjson");
    let mut sink = open(FileConfig::new(&path)).await.unwrap();
    fs::remove_dir_all(scratch.join("directory")).unwrap();
    let report = deliver(&mut sink, &numbered([1])).await;
    assert_eq!(report.outcomes, [Outcome::NotSent]);
    assert_eq!(report.unavailable.unwrap().kind, UnavailableKind::Missing);
    fs::create_dir(scratch.join("directory")).unwrap();
    delivered(&mut sink, &numbered([1])).await;
}

#[tokio::test]
async fn a_file_has_one_writer() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    let mut holder = Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", "echo locked; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let why = open(FileConfig::new(&path)).await.err().unwrap();
    assert_eq!(why.kind.policy().code, "in_use");
    let said = why.source.to_string();
    // The lock is its own, whatever it has started with it.
    assert!(said.contains(&format!("process {} (flock)", holder.id())), "{said}");
    assert!(!said.contains("is stopped"), "{said}");
    Process::find(i32::try_from(holder.id()).unwrap()).unwrap().signal(Signal::STOP).unwrap();
    let stopped = || async {
        let why = open(FileConfig::new(&path)).await.err().unwrap();
        why.source.to_string().contains("is stopped")
    };
    let begin = Instant::now();
    while !stopped().await {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is not said that it is stopped");
    }
    Process::find(i32::try_from(holder.id()).unwrap()).unwrap().signal(Signal::CONT).unwrap();
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    holder.wait().unwrap();

    let config = FileConfig { rotate: Some(Size(2)), ..FileConfig::new(&path) };
    let mut sink = open(config).await.unwrap();
    assert_eq!(open(FileConfig::new(&path)).await.err().unwrap().kind.policy().code, "in_use");
    // Still so when the file is a new one.
    delivered(&mut sink, &numbered([1])).await;
    delivered(&mut sink, &numbered([2])).await;
    assert_eq!(open(FileConfig::new(&path)).await.err().unwrap().kind.policy().code, "in_use");
    close(sink).await;
    open(FileConfig::new(&path)).await.unwrap();
}

#[test]
fn files_and_stdout_belong_to_one_relay() {
    let target = Target::File(FileConfig::new("x"));
    assert!(target.is_exclusive() && !target.has_destinations());
    assert_eq!(target.kind(), "file");
    assert!(!to_null().target.is_exclusive());
    let config: FileConfig = serde_json::from_str(r#"{"path": "x"}"#).unwrap();
    assert_eq!(config, FileConfig::new("x"));
    let config: FileConfig =
        serde_json::from_str(r#"{"path": "x", "fsync": "always", "rotate": "100MB", "keep": 3}"#).unwrap();
    let wanted = (Some(Size(100_000_000)), NonZeroU32::new(3), Fsync::Always);
    assert_eq!((config.rotate, config.keep, config.fsync), wanted);
    assert!(serde_json::from_str::<FileConfig>(r#"{"path": "x", "fsnyc": "always"}"#).is_err());
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// All files of a rotating sink, oldest first.
fn files(path: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file != path);
    files.sort();
    files.push(path.to_owned());
    files
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn rotation_keeps_every_line_once_and_in_order(
        batches in prop::collection::vec((1_u32..12, any::<bool>()), 1..30),
        rotate in 1_u64..60,
    ) {
        let scratch = Scratch::new();
        let path = scratch.join("events.ndjson");
        let config = FileConfig { rotate: Some(Size(rotate)), fsync: Fsync::Never, ..FileConfig::new(&path) };
        let next = runtime().block_on(async {
            let mut sink = open(config.clone()).await.unwrap();
            let mut next = 0;
            for (count, reopen) in batches {
                delivered(&mut sink, &numbered(next..next + count)).await;
                next += count;
                if reopen {
                    close(sink).await;
                    sink = open(config.clone()).await.unwrap();
                }
            }
            next
        });
        let lines: Vec<_> = files(&path).iter().flat_map(|file| numbers_in(file)).collect();
        prop_assert_eq!(lines, (0..next).collect::<Vec<_>>());
        for file in files(&path) {
            let text = fs::read_to_string(&file).unwrap();
            // One batch may be larger than a file should be; two may not.
            prop_assert!(text.len() as u64 <= rotate.max(12 * 4), "{} has {}", file.display(), text.len());
        }
    }

    #[test]
    fn every_event_is_one_line(records in prop::collection::vec(any_record(), 1..20)) {
        let scratch = Scratch::new();
        let path = scratch.join("events.ndjson");
        let mut preparer = Preparer::new(&to_null()).unwrap();
        let batch: Vec<Message<'_>> = records.iter().map(|record| message(&mut preparer, record)).collect();
        runtime().block_on(async {
            let mut sink = open(FileConfig { fsync: Fsync::Never, ..FileConfig::new(&path) }).await.unwrap();
            assert!(sink.deliver(&batch).await.unavailable.is_none());
        });
        let written = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = written.split_terminator('\n').collect();
        let bodies: Vec<_> = batch.iter().map(|message| text(message).replace(['\n', '\r'], " ")).collect();
        prop_assert_eq!(lines, bodies);
    }
}

#[tokio::test]
async fn fault_115_a_full_disk_leaves_no_torn_and_no_double_line() {
    let scratch = Scratch::with_room_for(1 << 20);
    let path = scratch.join("events.ndjson");
    let ballast = scratch.join("ballast");
    fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    for fsync in [Fsync::Batch, Fsync::Never, Fsync::Always] {
        let _ = fs::remove_file(&path);
        let mut sink = open(FileConfig { fsync, ..FileConfig::new(&path) }).await.unwrap();
        let batches: Vec<Vec<Record>> = (0..40)
            .map(|batch| {
                (0..10)
                    .map(|n| with_payload(format!("[{},\"{}\"]", batch * 10 + n, "x".repeat(3000))))
                    .collect()
            })
            .collect();
        let mut settled = 0;
        let mut failures = 0;
        for batch in &batches {
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let report = deliver(&mut sink, rest).await;
                let count = report.outcomes.iter().filter(|outcome| **outcome == Outcome::Delivered).count();
                settled += count;
                rest = &rest[count..];
                let Some(why) = report.unavailable else { continue };
                assert_eq!(why.kind, UnavailableKind::Full, "{}", why.source);
                assert!(fsync == Fsync::Always || count == 0);
                failures += 1;
                let written = fs::read_to_string(&path).unwrap();
                assert!(written.is_empty() || written.ends_with('\n'));
                assert_eq!(written.lines().count(), settled);
                match failures {
                    // Still full.
                    1 => {}
                    2 => fs::write(&ballast, vec![0; 20 << 10]).unwrap(),
                    // Somebody takes the file away to make room.
                    _ => {
                        let written = fs::read_to_string(&path).unwrap();
                        check_numbers(&written, 0);
                        settled = 0;
                        fs::remove_file(&path).unwrap();
                    }
                }
            }
        }
        assert!(failures >= 2);
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(written.lines().count(), settled);
        check_numbers(&written, 400 - settled);
        fs::write(&ballast, vec![0; 1]).unwrap();
        close(sink).await;
        let _ = fs::remove_file(&path);
        fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    }
}

fn check_numbers(written: &str, first: usize) {
    for (at, line) in written.lines().enumerate() {
        assert!(line.starts_with(&format!("[{},", first + at)), "{}", &line[..20]);
    }
}

/// Set for the process that is to be killed: where to write.
const CHILD: &str = "POSTRIDER_FILE_SINK_CHILD";

/// Not a test but the process that [`a_killed_writer_leaves_at_most_one_torn_line`] kills: writes numbered lines for ever, and says
/// how many were delivered.
#[tokio::test]
async fn writes_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let mut sink = open(FileConfig { fsync: Fsync::Never, ..FileConfig::new(&path) }).await.unwrap();
    let mut next = fs::read_to_string(&path).unwrap().lines().count();
    loop {
        let batch: Vec<_> =
            (next..next + 100).map(|n| with_payload(format!("[{n},\"{}\"]", "x".repeat(10_000)))).collect();
        delivered(&mut sink, &batch).await;
        next += batch.len();
        println!("delivered:{next}");
    }
}

fn victim(path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file_sink::writes_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

#[tokio::test]
async fn a_killed_writer_leaves_at_most_one_torn_line() {
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    for round in 1..=8 {
        let (mut child, output) = victim(&path);
        let mut settled = 0;
        let mut reports = 0;
        for line in output.lines() {
            let line = line.unwrap();
            if let Some((_, count)) = line.split_once("delivered:") {
                settled = count.parse().unwrap();
                reports += 1;
                if reports == round {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        assert!(reports >= round, "the child ended by itself");

        let torn = fs::read_to_string(&path).unwrap();
        let whole = torn.rfind('\n').map_or(0, |at| at + 1);
        check_numbers(&torn[..whole], 0);
        let sink = open(FileConfig::new(&path)).await.unwrap();
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(written, torn[..whole]);
        let count = written.lines().count();
        assert!(count >= settled, "{settled} were delivered and {count} are there");
        close(sink).await;
    }
}
