//! What leaves is one JSON document with the payload in it, byte for byte.

use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::file::FileConfig;
use postrider_relay::{EnvelopeKind, Preparer, RefusalKind, SinkSettings};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::written::{any_record, cases, message, order_paid, refusal, text, to_null, with_payload};

fn preparer(envelope: EnvelopeKind) -> Preparer {
    Preparer::new(&SinkSettings { envelope, source: "//shop.example/main".to_owned(), ..to_null() }).unwrap()
}

#[test]
fn a_cloudevent_has_its_attributes() {
    let record = Record {
        headers: Some(
            r#"{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","attempt":3,"retry":true,
                "X-Origin":"web","big":3000000000,"zero":-0,"list":[1],"none":null,"id":"mine","attempt":4}"#
                .to_owned(),
        ),
        ..order_paid()
    };
    let mut preparer = preparer(EnvelopeKind::Cloudevents);
    let message = message(&mut preparer, &record);
    assert_eq!(message.content_type, "application/cloudevents+json");
    let mut event: Value = serde_json::from_slice(&message.body).unwrap();
    let headers = event["headers"].take();
    assert_eq!(
        event,
        json!({
            "specversion": "1.0",
            "source": "//shop.example/main",
            "id": "01900000-0000-7000-8000-000000000001",
            "type": "order.paid",
            "subject": "42",
            "partitionkey": "42",
            "time": "2024-01-29T16:53:20.123456Z",
            "datacontenttype": "application/json",
            "entity": "order",
            "tenant": "acme",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "retry": true,
            "attempt": 4,
            "headers": null,
            "data": {"total": 12.50, "currency": "EUR"},
        })
    );
    let headers: Value = serde_json::from_str(headers.as_str().unwrap()).unwrap();
    assert_eq!(
        headers,
        json!({"X-Origin": "web", "big": 3_000_000_000_u64, "zero": -0.0, "list": [1], "id": "mine"})
    );
}

#[test]
fn a_cloudevent_leaves_out_what_the_event_does_not_have() {
    let record = Record {
        source_id: Some("4711".to_owned()),
        entity: None,
        key: Some(String::new()),
        tenant: None,
        ..order_paid()
    };
    let mut preparer = preparer(EnvelopeKind::Cloudevents);
    assert_eq!(
        text(&message(&mut preparer, &record)),
        r#"{"specversion":"1.0","source":"//shop.example/main","id":"4711","type":"order.paid","time":"2024-01-29T16:53:20.123456Z","datacontenttype":"application/json","data":{"total":12.50,"currency":"EUR"}}"#
    );
}

#[test]
fn what_is_no_cloudevent_is_refused() {
    let mut preparer = preparer(EnvelopeKind::Cloudevents);
    for record in [
        Record { r#type: String::new(), ..order_paid() },
        Record { source_id: Some(String::new()), ..order_paid() },
        with_payload(""),
        with_payload(" \n"),
        with_payload("NaN"),
    ] {
        assert_eq!(refusal(&mut preparer, &record).kind, RefusalKind::Envelope);
    }
}

#[test]
fn a_source_is_a_uri_reference() {
    for source in ["", "my shop", "a\nb"] {
        let error = Preparer::new(&SinkSettings { source: source.to_owned(), ..to_null() })
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("source: "), "{error}");
    }
}

#[test]
fn plain_is_the_payload() {
    let mut preparer = preparer(EnvelopeKind::Plain);
    let record =
        Record { headers: Some(r#"{"event_id":"17","n":1,"none":null}"#.to_owned()), ..order_paid() };
    let message = message(&mut preparer, &record);
    assert_eq!(text(&message), record.payload);
    let own = [("event_id".to_owned(), "17".to_owned()), ("n".to_owned(), "1".to_owned())];
    assert_eq!(message.headers, own);
}

#[test]
fn plane_is_the_golden_copy() {
    let golden = include_str!("golden/plane.json");
    let payload = {
        let (_, rest) = golden.split_once("\"payload\": ").unwrap();
        rest.split_once(",\n\n").unwrap().0
    };
    let record = Record {
        id: "550e8400-e29b-41d4-a716-446655440000".parse().unwrap(),
        r#type: "workitem.updated".to_owned(),
        entity: Some("issue".to_owned()),
        key: Some("7b0d1c52-6a1f-4f0e-9f53-0c1f3f0a9a11".to_owned()),
        tenant: Some("3f2504e0-4f89-41d3-9a0c-0305e82c3301".to_owned()),
        headers: Some(r#"{"initiator_id": "9", "initiator_type": "USER"}"#.to_owned()),
        ..with_payload(payload)
    };
    let mut preparer = preparer(EnvelopeKind::Plane);
    let body = text(&message(&mut preparer, &record));
    // Member by member, in the same order and with the same digits.
    let strip = |text: &str| text.split_whitespace().collect::<String>();
    assert_eq!(strip(&body), strip(golden));

    let bare = Record { key: None, tenant: None, headers: None, ..order_paid() };
    let body: Value = serde_json::from_slice(&message(&mut preparer, &bare).body).unwrap();
    assert_eq!((&body["entity_id"], &body["initiator_type"]), (&Value::Null, &Value::Null));
}

#[test]
fn debezium_is_the_routers_message() {
    let record =
        Record { headers: Some(r#"{"traceparent":"00-a","n":1,"id":"x"}"#.to_owned()), ..order_paid() };
    let mut preparer = preparer(EnvelopeKind::Debezium);
    let message = message(&mut preparer, &record);
    assert_eq!(text(&message), record.payload);
    let headers: Vec<_> =
        message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        headers,
        [
            ("id", "01900000-0000-7000-8000-000000000001"),
            ("eventType", "order.paid"),
            ("traceparent", "00-a"),
            ("n", "1"),
        ]
    );
}

/// The attributes of the structured form, as headers.
#[test]
fn a_binary_cloudevent_has_its_attributes_in_headers() {
    let record = Record {
        key: Some("Zoë".to_owned()),
        headers: Some(r#"{"traceparent":"00-a","attempt":3,"X-Origin":"web","odd":"\ud800"}"#.to_owned()),
        ..order_paid()
    };
    let mut preparer = preparer(EnvelopeKind::CloudeventsBinary);
    let message = message(&mut preparer, &record);
    assert_eq!((message.content_type, text(&message)), ("application/json", record.payload.clone()));
    let headers: Vec<_> =
        message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        headers,
        [
            ("ce-specversion", "1.0"),
            ("ce-source", "//shop.example/main"),
            ("ce-id", "01900000-0000-7000-8000-000000000001"),
            ("ce-type", "order.paid"),
            ("ce-time", "2024-01-29T16:53:20.123456Z"),
            ("ce-subject", "Zo%C3%AB"),
            ("ce-partitionkey", "Zo%C3%AB"),
            ("ce-entity", "order"),
            ("ce-tenant", "acme"),
            ("ce-traceparent", "00-a"),
            ("ce-attempt", "3"),
            ("ce-headers", "{%22X-Origin%22:%22web%22,%22odd%22:%22\\ud800%22}"),
        ]
    );
    for record in [
        Record { r#type: String::new(), ..order_paid() },
        Record { source_id: Some(String::new()), ..order_paid() },
    ] {
        assert_eq!(refusal(&mut preparer, &record).kind, RefusalKind::Envelope);
    }
}

#[test]
fn a_binary_cloudevent_needs_headers() {
    let file = Target::File(FileConfig::new("events.ndjson"));
    let binary = SinkSettings { envelope: EnvelopeKind::CloudeventsBinary, ..SinkSettings::new("f", file) };
    let error = Preparer::new(&binary).err().unwrap();
    assert_eq!(error.key, "envelope");
    assert!(error.message.contains("a file sink has no headers"), "{error}");
}

#[derive(serde::Deserialize)]
struct CloudEvent<'a> {
    #[serde(borrow)]
    data: &'a RawValue,
}

#[derive(serde::Deserialize)]
struct PlaneMessage<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// A header may hold an escape that stands for no character, which the database takes and most readers do not.
fn has_lone_surrogate(record: &Record) -> bool {
    let mut texts = [Some(&record.payload), record.headers.as_ref()].into_iter().flatten();
    texts.any(|text| text.contains("\\ud800"))
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_record_becomes_one_document_with_its_payload_untouched(record in any_record()) {
        let body = text(&message(&mut preparer(EnvelopeKind::Cloudevents), &record));
        let raw: CloudEvent<'_> = serde_json::from_str(&body).unwrap();
        prop_assert_eq!(raw.data.get(), &record.payload);
        if !has_lone_surrogate(&record) {
            let event: Value = serde_json::from_str(&body.replace(&record.payload, "0")).unwrap();
            let event = event.as_object().unwrap();
            for (name, value) in event {
                prop_assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
                prop_assert!(name == "data" || value.is_string() || value.is_boolean() || value.is_i64());
            }
        }

        let body = text(&message(&mut preparer(EnvelopeKind::Plane), &record));
        let raw: PlaneMessage<'_> = serde_json::from_str(&body).unwrap();
        prop_assert_eq!(raw.payload.get(), &record.payload);

        for kind in [EnvelopeKind::Plain, EnvelopeKind::Debezium] {
            prop_assert_eq!(&text(&message(&mut preparer(kind), &record)), &record.payload);
        }
    }

    #[test]
    fn the_same_event_gives_the_same_bytes(record in any_record()) {
        for kind in [EnvelopeKind::Cloudevents, EnvelopeKind::Plane] {
            prop_assert_eq!(
                message(&mut preparer(kind), &record).body,
                message(&mut preparer(kind), &record).body
            );
        }
    }
}
