use super::*;

fn message(content_type: &str, body: &str) -> Message {
    Message { content_type: Some(content_type.to_owned()), body: body.into(), ..Message::default() }
}

fn headers(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_structured_cloud_event_has_everything_inside() {
    let body = r#"{"specversion":"1.0","source":"shop","id":"7","type":"order.paid","subject":"k","partitionkey":"k","time":"2026-01-01T00:00:00Z",
        "datacontenttype":"application/json","entity":"order","tenant":"acme","traceparent":"00-1","headers":"{\"x-y\":1}","data":{"cents": 12.50}}"#;
    let event = decode(&message("application/cloudevents+json; charset=utf-8", body)).unwrap();
    assert_eq!(
        (event.id.as_str(), event.r#type.as_str(), event.key.as_deref()),
        ("7", "order.paid", Some("k"))
    );
    assert_eq!((event.tenant.as_deref(), event.entity.as_deref()), (Some("acme"), Some("order")));
    assert_eq!(event.payload.get(), r#"{"cents": 12.50}"#, "byte for byte");
    assert_eq!(Value::Object(event.headers), serde_json::json!({"traceparent": "00-1", "x-y": 1}));
}

#[test]
fn a_binary_cloud_event_has_its_attributes_in_headers() {
    for prefix in ["ce-", "ce_", "cloudEvents:", "cloudEvents_"] {
        let of =
            ["specversion", "id", "type", "source"].map(|name| (format!("{prefix}{name}"), "x".to_owned()));
        let mut message =
            Message { headers: of.into(), key: Some("k".into()), ..message("application/json", "[1]") };
        message.headers.push(("traceparent".into(), "00-1".into()));
        let event = decode(&message).unwrap();
        assert_eq!((event.id.as_str(), event.key.as_deref(), event.payload.get()), ("x", Some("k"), "[1]"));
        assert_eq!(Value::Object(event.headers), serde_json::json!({"traceparent": "00-1"}));
    }
}

#[test]
fn the_message_of_a_poller_is_one_only_under_its_own_id() {
    let body = r#"{"timestamp":1706547200,"publisher":"event-stream","event_id":"e1","event_type":"workitem.updated","entity_id":"i1","payload":{"data":{}},"workspace_id":"w","initiator_type":"USER"}"#;
    let mut message = Message { id: Some("e1".into()), ..message("application/json", body) };
    let event = decode(&message).unwrap();
    assert_eq!(
        (event.id.as_str(), event.key.as_deref(), event.tenant.as_deref()),
        ("e1", Some("i1"), Some("w"))
    );
    assert_eq!(
        (event.payload.get(), &event.headers["initiator_type"]),
        (r#"{"data":{}}"#, &Value::from("USER"))
    );
    message.id = Some("another".into());
    message.r#type = Some("t".into());
    let event = decode(&message).unwrap();
    assert_eq!(
        (event.id.as_str(), event.payload.get()),
        ("another", body),
        "a payload that only looks like one"
    );
}

#[test]
fn a_payload_alone_has_its_id_and_type_beside_it() {
    let debezium = Message {
        headers: headers(&[("id", "7"), ("eventType", "order.paid")]),
        ..message("application/json", "1")
    };
    let kafka = Message {
        headers: headers(&[("event_id", "7"), ("event_type", "order.paid")]),
        ..message("application/json", "1")
    };
    let fields = Message {
        id: Some("7".into()),
        r#type: Some("order.paid".into()),
        ..message("application/json", "1")
    };
    for message in [debezium, kafka, fields] {
        let event = decode(&message).unwrap();
        assert_eq!((event.id.as_str(), event.r#type.as_str(), event.payload.get()), ("7", "order.paid", "1"));
    }
}

#[test]
fn what_is_no_event_says_why() {
    let why = |message: &Message| decode(message).unwrap_err().to_string();
    assert!(why(&message("application/cloudevents+json", "{")).starts_with("the body is no JSON"));
    assert!(why(&message("application/cloudevents+json", r#"{"id":"7"}"#)).contains("no type"));
    assert!(why(&message("text/plain", "hello")).contains("which event"));
    let torn =
        Message { id: Some("7".into()), r#type: Some("t".into()), ..message("application/json", "{\"a") };
    assert!(why(&torn).starts_with("the body is no JSON"));
}
