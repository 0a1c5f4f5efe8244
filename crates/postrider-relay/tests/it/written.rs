//! Records as the log would hand them over, and what is made of them.

use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::null::NullConfig;
use postrider_relay::{Message, Prepared, Preparer, Refusal, SinkSettings};
use proptest::prelude::*;
use time::OffsetDateTime;
use uuid::Uuid;

/// An event with every column set.
pub fn order_paid() -> Record {
    Record {
        seq: 7,
        lane: 3,
        id: Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001),
        source_id: None,
        r#type: "order.paid".to_owned(),
        entity: Some("order".to_owned()),
        key: Some("42".to_owned()),
        tenant: Some("acme".to_owned()),
        payload: r#"{"total":12.50,"currency":"EUR"}"#.to_owned(),
        headers: None,
        created_at: OffsetDateTime::from_unix_timestamp_nanos(1_706_547_200_123_456_000).unwrap(),
    }
}

/// The same with another payload.
pub fn with_payload(payload: impl Into<String>) -> Record {
    Record { payload: payload.into(), ..order_paid() }
}

/// A sink that takes everything.
pub fn to_null() -> SinkSettings {
    SinkSettings::new("test", Target::Null(NullConfig {}))
}

pub fn message<'a>(preparer: &mut Preparer, record: &'a Record) -> Message<'a> {
    match preparer.prepare(record) {
        Prepared::Send(message) => message,
        other => panic!("{other:?}"),
    }
}

pub fn refusal(preparer: &mut Preparer, record: &Record) -> Refusal {
    match preparer.prepare(record) {
        Prepared::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

pub fn text(message: &Message<'_>) -> String {
    String::from_utf8(message.body.clone()).unwrap()
}

/// So many cases, and nothing left in the source tree when one fails: the message says what it was.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Any JSON that the database takes, with white space between its tokens.
pub fn any_json() -> impl Strategy<Value = String> {
    let space = || prop::sample::select(vec!["", "", " ", "\n", "\r\n\t"]);
    let number = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?";
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false", "\"\\ud800\"", "\"\\u0000\""])
            .prop_map(str::to_owned),
        number.prop_map(|text| text),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        let member = (any::<String>(), space(), inner.clone()).prop_map(|(name, space, value)| {
            format!("{}{space}:{value}", serde_json::to_string(&name).unwrap())
        });
        prop_oneof![
            (prop::collection::vec(inner, 0..5), space())
                .prop_map(|(values, space)| format!("[{space}{}{space}]", values.join(","))),
            (prop::collection::vec(member, 0..5), space()).prop_map(|(members, space)| format!(
                "{{{space}{}{space}}}",
                members.join(&format!(",{space}"))
            )),
        ]
    })
}

prop_compose! {
    /// Any record at all.
    pub fn any_record()(
        seq in any::<i64>(),
        id in any::<u128>(),
        source_id in prop::option::weighted(0.2, ".+"),
        r#type in ".+",
        (entity, key, tenant) in any::<(Option<String>, Option<String>, Option<String>)>(),
        payload in any_json(),
        headers in prop::option::of(any_headers()),
        micros in 0_i64..4_000_000_000_000_000,
    ) -> Record {
        Record {
            seq,
            lane: 0,
            id: Uuid::from_u128(id),
            source_id,
            r#type,
            entity,
            key,
            tenant,
            payload,
            headers,
            created_at: OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap(),
        }
    }
}

fn any_headers() -> impl Strategy<Value = String> {
    let name = prop_oneof!["[a-z0-9]{1,12}", ".*", Just("data".to_owned()), Just("id".to_owned())];
    let member = (name, any_json())
        .prop_map(|(name, value)| format!("{} : {value}", serde_json::to_string(&name).unwrap()));
    prop::collection::vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(" ,\n")))
}
