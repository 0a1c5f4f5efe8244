//! Payloads that break things elsewhere.

use std::fs;
use std::time::Instant;

use postrider::log::Record;
use postrider_relay::sinks::file::{FileConfig, FileSink, Fsync};
use postrider_relay::{EnvelopeKind, Message, Outcome, Prepared, Preparer, Sink, SinkSettings};
use proptest::prelude::*;

use crate::scratch::Scratch;
use crate::written::{cases, order_paid, to_null, with_payload};

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn nested_objects(depth: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth))
}

fn nasty() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0_usize..2_000_000).prop_map(|size| serde_json::to_string(&"é".repeat(size / 2)).unwrap()),
        (1_usize..20_000).prop_map(nested),
        (1_usize..20_000).prop_map(nested_objects),
        Just("\"\u{0}\"".to_owned()),
        Just("\"\\u0000\"".to_owned()),
        // What is left of bad UTF-8 when it has come through a database: an escape for half a character.
        Just("\"\\udfff\\ud800\"".to_owned()),
        Just("\"\u{fffd}\"".to_owned()),
        prop::sample::select(vec!["NaN", "Infinity", "-Infinity", "{\"a\":NaN}", "[-NaN]", "{", "\"", "[}"])
            .prop_map(str::to_owned),
        (1_usize..100_000).prop_map(|digits| "9".repeat(digits)),
        (1_usize..100_000).prop_map(|digits| format!("0.{}e-{}", "1".repeat(digits), "9".repeat(20))),
        any::<String>(),
    ]
}

fn any_settings() -> impl Strategy<Value = SinkSettings> {
    use EnvelopeKind::{Cloudevents, Debezium, Plain, Plane};
    let code = |codes: Vec<Option<&'static str>>| {
        prop::sample::select(codes).prop_map(|code| code.map(str::to_owned))
    };
    (
        prop::sample::select(vec![Cloudevents, Plain, Plane, Debezium]),
        code(vec![None, Some("true"), Some(".payload != null"), Some(".payload | tojson | length > 0")]),
        code(vec![None, Some(".payload"), Some("{a: [..] | length}"), Some(".payload | tojson | fromjson")]),
        code(vec![None, Some("t.{payload.a}")]),
    )
        .prop_map(|(envelope, filter, transform, route)| SinkSettings {
            envelope,
            filter,
            transform,
            route,
            ..to_null()
        })
}

/// Delivers what can be delivered; the good events around a nasty one are always there.
fn check(settings: &SinkSettings, payload: String) -> Result<(), TestCaseError> {
    let good = || Record { payload: "{\"a\":1}".to_owned(), ..order_paid() };
    let records = [good(), with_payload(payload), good()];
    let mut preparer = Preparer::new(settings).unwrap();
    let mut batch: Vec<Message<'_>> = Vec::new();
    for (at, prepared) in preparer.prepare_all(&records.each_ref()).into_iter().enumerate() {
        match prepared {
            Prepared::Send(message) => batch.push(message),
            Prepared::Filtered => prop_assert_eq!(at, 1),
            Prepared::Refused(refusal) => {
                prop_assert_eq!(at, 1, "{}", refusal.reason);
                prop_assert!(!refusal.reason.is_empty() && refusal.reason.len() < 2000);
            }
        }
    }
    let scratch = Scratch::new();
    let path = scratch.join("events.ndjson");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let report = runtime.block_on(async {
        let config = FileConfig { fsync: Fsync::Never, ..FileConfig::new(&path) };
        FileSink::open(config).await.unwrap().deliver(&batch).await
    });
    prop_assert_eq!(report.outcomes, vec![Outcome::Delivered; batch.len()]);
    let lines = memchr::memchr_iter(b'\n', &fs::read(&path).unwrap()).count();
    prop_assert_eq!(lines, batch.len());
    Ok(())
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn fault_41_a_nasty_payload_is_delivered_or_refused_and_others_flow(
        settings in any_settings(),
        payload in nasty(),
    ) {
        check(&settings, payload)?;
    }
}

#[test]
fn fault_41_the_sizes_and_depths_that_are_named() {
    let mebibyte = |count: usize| format!("\"{}\"", "x".repeat((count << 20) - 2));
    for transform in [None, Some(".payload".to_owned())] {
        let settings = SinkSettings { transform, ..to_null() };
        for payload in [String::new(), mebibyte(1), mebibyte(64), nested(10_000), nested_objects(10_000)] {
            let start = Instant::now();
            let size = payload.len();
            check(&settings, payload).unwrap();
            assert!(start.elapsed().as_secs() < 20, "{size} bytes took {:?}", start.elapsed());
        }
    }
}

#[test]
fn fault_41_depth_is_delivered_as_it_is_and_refused_to_expressions() {
    let record = with_payload(nested(10_000));
    let mut plain = Preparer::new(&SinkSettings { envelope: EnvelopeKind::Plain, ..to_null() }).unwrap();
    let Prepared::Send(message) = plain.prepare(&record) else { panic!() };
    assert_eq!(message.body, record.payload.as_bytes());
    let mut filtered = Preparer::new(&SinkSettings { filter: Some("true".to_owned()), ..to_null() }).unwrap();
    let Prepared::Refused(refusal) = filtered.prepare(&record) else { panic!() };
    assert!(refusal.reason.contains("nested deeper than 512 levels"), "{}", refusal.reason);
}
