//! Filters and transforms, and what is done about those that do not end.

use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider_relay::{EnvelopeKind, Prepared, Preparer, RefusalKind, SinkSettings};
use proptest::prelude::*;
use serde_json::Value;

use crate::written::{any_json, cases, message, order_paid, refusal, text, to_null, with_payload};

fn settings(filter: Option<&str>, transform: Option<&str>) -> SinkSettings {
    SinkSettings {
        filter: filter.map(str::to_owned),
        transform: transform.map(str::to_owned),
        envelope: EnvelopeKind::Plain,
        ..to_null()
    }
}

fn filter(code: &str) -> Preparer {
    Preparer::new(&settings(Some(code), None)).unwrap()
}

fn transform(code: &str) -> Preparer {
    Preparer::new(&settings(None, Some(code))).unwrap()
}

/// What a transform makes of an event.
fn transformed(code: &str, record: &Record) -> String {
    text(&message(&mut transform(code), record))
}

#[test]
fn a_filter_lets_pass_what_it_is_true_for() {
    for (code, passes) in [
        ("true", true),
        (".type | startswith(\"order.\")", true),
        (".type == \"order.paid\" and .tenant != \"acme\"", false),
        (".payload.total > 12", true),
        (".headers.urgent // false", false),
        (".created_at | startswith(\"2024-01-29T16:53:20.123456Z\")", true),
        (".id == \"01900000-0000-7000-8000-000000000001\" and .key == \"42\" and .entity == \"order\"", true),
        (".payload.currency | test(\"^(EUR|USD)$\")", true),
        (".payload | has(\"total\")", true),
    ] {
        let prepared = filter(code).prepare(&order_paid()).is_sent();
        assert_eq!(prepared, passes, "{code}");
    }
}

trait IsSent {
    fn is_sent(&self) -> bool;
}

impl IsSent for Prepared<'_> {
    fn is_sent(&self) -> bool {
        match self {
            Prepared::Send(_) => true,
            Prepared::Filtered => false,
            Prepared::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
}

#[test]
fn a_transform_makes_the_payload() {
    for (code, payload) in [
        (".payload", r#"{"total":12.50,"currency":"EUR"}"#),
        (".payload.total", "12.50"),
        ("{type, k: .key, sum: (.payload.total * 2)}", r#"{"type":"order.paid","k":"42","sum":25.0}"#),
        (".payload | .currency |= ascii_downcase", r#"{"total":12.50,"currency":"eur"}"#),
        (".payload | .total += 1 | .n += \"x\"", r#"{"total":13.5,"currency":"EUR","n":"x"}"#),
        ("[.payload | to_entries[] | .key] | join(\"-\")", "\"total-currency\""),
        ("\"\\(.type) of \\(.payload)\"", r#""order.paid of {\"total\":12.50,\"currency\":\"EUR\"}""#),
        ("@json \"v=\\(.payload.total)\"", "\"v=12.50\""),
        ("[[range(3)], [range(1; 10; 4)], [range(3; 0; -1)]]", "[[0,1,2],[1,5,9],[3,2,1]]"),
        ("(\"[1,2]\" | fromjson) + [\"3\" | tonumber]", "[1,2,3]"),
        (
            "[1,2,3,4] | map(select(. % 2 == 0)) | {even: ., n: length, mean: (add / length)}",
            r#"{"even":[2,4],"n":2,"mean":3.0}"#,
        ),
        ("reduce .payload.currency[0:2] as $x ({}; .[$x] = 1)", r#"{"EU":1}"#),
        (". as {payload: {total: $t}} | [$t, -$t]", "[12.50,-12.50]"),
        ("try error(\"x\") catch .", "\"x\""),
        ("first(.payload[] | select(type == \"string\"))", "\"EUR\""),
        ("\"a\" * 3", "\"aaa\""),
        ("label $out | 1, break $out", "1"),
        ("def f($x; g): $x | g; f(2; . + 1)", "3"),
    ] {
        assert_eq!(transformed(code, &order_paid()), payload, "{code}");
    }
}

#[test]
fn filter_and_transform_work_together() {
    let mut preparer = Preparer::new(&settings(Some(".type == \"order.paid\""), Some("{id}"))).unwrap();
    let record = order_paid();
    assert_eq!(text(&message(&mut preparer, &record)), r#"{"id":"01900000-0000-7000-8000-000000000001"}"#);
    let other = Record { r#type: "order.lost".to_owned(), ..order_paid() };
    assert!(matches!(preparer.prepare(&other), Prepared::Filtered));
}

#[test]
fn the_transformed_payload_goes_into_the_envelope() {
    let settings =
        SinkSettings { envelope: EnvelopeKind::Cloudevents, ..settings(None, Some("{n: .payload.total}")) };
    let record = order_paid();
    let body = text(&message(&mut Preparer::new(&settings).unwrap(), &record));
    assert!(body.ends_with(r#","data":{"n":12.50}}"#), "{body}");
}

#[test]
fn numbers_keep_every_digit() {
    let payload =
        "[12345678901234567890123456789,-9007199254740993,0.1000000000000000055,1.10,1E400,1e-7,0.0]";
    assert_eq!(transformed(".payload", &with_payload(payload)), payload);
    assert_eq!(transformed("[.payload[]]", &with_payload(payload)), payload);
    assert_eq!(transformed(".payload[0] + 1", &with_payload(payload)), "12345678901234567890123456790");
    // jq has no negative zero among its integers.
    assert_eq!(transformed(".payload", &with_payload("-0")), "0");
}

#[test]
fn an_error_is_a_refusal_with_what_jq_said() {
    for (code, reason) in [
        (".payload.total | ascii_downcase", "cannot use 12.50 as string"),
        ("error(\"no such luck\")", "no such luck"),
        (".type.x", "cannot index \"order.paid\" with \"x\""),
        ("empty", "gives no value"),
        ("1, 2", "gives more than one value"),
        ("1, error(\"late\")", "late"),
        ("nan", "gives NaN, which JSON does not have"),
        ("infinite", "gives Infinity, which JSON does not have"),
        ("{(1, 2 | tostring): 1}", "gives more than one value"),
        ("{} | .[[1]] = 1", "gives an object with the name [1]; JSON has only strings"),
        ("\"a\" | tobytes", "gives bytes; JSON has only text"),
        ("\"[1,\" | fromjson", "cannot parse \"[1,\" as JSON: byte offset 3: value expected"),
        ("\"secret\" | tonumber", "cannot parse \"secret\" as JSON: byte offset 0: value expected"),
        ("\"1 x\" | fromjson", "cannot parse \"1 x\" as JSON: byte offset 2: value expected"),
    ] {
        let refusal = refusal(&mut transform(code), &order_paid());
        assert_eq!((refusal.kind, refusal.reason.as_str()), (RefusalKind::Transform, reason), "{code}");
    }
    for (code, reason) in [
        ("1", "filter: gives 1, neither true nor false"),
        ("null", "filter: gives null, neither true nor false"),
        ("empty", "filter: gives no value"),
        ("true, true", "filter: gives more than one value"),
        (".type | test(\"(\")", "filter: invalid regex"),
    ] {
        let refusal = refusal(&mut filter(code), &order_paid());
        assert_eq!(refusal.kind, RefusalKind::Transform);
        assert!(refusal.reason.starts_with(reason), "{code}: {}", refusal.reason);
    }
}

#[test]
fn a_long_message_is_cut() {
    let record = with_payload(serde_json::to_string(&"long ".repeat(100_000)).unwrap());
    let refusal = refusal(&mut transform(".payload + 1"), &record);
    assert!(refusal.reason.len() < 1100 && refusal.reason.ends_with('…'), "{}", refusal.reason);
}

#[test]
fn what_does_not_compile_says_where() {
    for (code, message) in [
        ("", "line 1, column 1: expected term, and the expression ends"),
        (".a |", "line 1, column 5: expected term, and the expression ends"),
        (".a\n| foo(1)", "line 2, column 3: there is no filter foo at \"foo(1)\""),
        ("$x", "line 1, column 1: there is no variable $x at \"$x\""),
        (".a == §", "line 1, column 7: expected token at \"§\""),
        ("[1", "line 1, column 3: expected closing bracket, and the expression ends"),
        ("if . then 1", "line 1, column 12: expected else or end, and the expression ends"),
        // Not for a relay.
        ("env", "line 1, column 1: there is no filter env at \"env\""),
        ("$ENV", "line 1, column 1: there is no variable $ENV at \"$ENV\""),
        ("halt", "line 1, column 1: there is no filter halt at \"halt\""),
        ("debug", "line 1, column 1: there is no filter debug at \"debug\""),
        ("input", "line 1, column 1: there is no filter input at \"input\""),
        ("include \"x\"; .", "line 1, column 9: expected the end at "),
    ] {
        let error = Preparer::new(&settings(Some(code), None)).err().unwrap();
        assert_eq!(error.key, "filter");
        assert!(error.message.starts_with(message), "{code:?}: {}", error.message);
    }
    let error = Preparer::new(&settings(None, Some("."))).err();
    assert!(error.is_none());
}

/// Expressions that would not end, or would fill the memory, or the stack.
const RUNAWAYS: [&str; 19] = [
    "def f: f; f",
    "def f: 1 + f; f",
    "def f: [f]; f",
    "def f: .[] | f, f; [[1]] | f",
    "def wrap: [.] | wrap; wrap",
    "reduce range(1e9) as $i (null; [.])",
    "try (def f: f; f) catch 1",
    "[limit(1e9; repeat(1))]",
    "range(1e12)",
    "[range(1e12)]",
    "last(range(1e12))",
    "first(range(1e12) | select(. < 0))",
    "\"x\" * 1000000000000",
    "reduce range(100) as $i (\"x\"; . + .)",
    "reduce range(100) as $i ([1]; . + .)",
    "reduce range(100) as $i (3; . * .)",
    "reduce range(60) as $i (1; [., .])",
    "reduce range(60) as $i (1; [., .]) | tojson | length",
    "\"[\" * 1000000 | fromjson",
];

#[test]
fn a_runaway_costs_one_event_and_not_the_relay() {
    let record = order_paid();
    for code in RUNAWAYS {
        let start = Instant::now();
        let refusal = refusal(&mut transform(code), &record);
        assert_eq!(refusal.kind, RefusalKind::Transform);
        assert!(start.elapsed() < Duration::from_secs(20), "{code}: {:?}", start.elapsed());
    }
}

#[test]
fn events_around_a_runaway_are_prepared() {
    let code =
        "if .key == \"loop\" then def f: f; f elif .key == \"deep\" then def f: 1 + f; f else .key end";
    let records: Vec<_> = ["1", "loop", "2", "deep", "loop", "3"]
        .into_iter()
        .map(|key| Record { key: Some(key.to_owned()), ..order_paid() })
        .collect();
    let mut preparer = transform(code);
    for _ in 0..3 {
        let answers = preparer.prepare_all(&records.iter().collect::<Vec<_>>());
        let seen: Vec<_> = answers
            .iter()
            .map(|prepared| match prepared {
                Prepared::Send(message) => text(message),
                Prepared::Refused(refusal) => refusal.reason.clone(),
                Prepared::Filtered => "filtered".to_owned(),
            })
            .collect();
        let steps = "filter or transform takes more than 500000 steps on this event";
        assert_eq!(seen[0], "\"1\"");
        // On a slow machine time ends before the steps do.
        let is_given_up = |reason: &str| reason == steps || reason.contains("takes too long");
        assert!(is_given_up(&seen[1]), "{}", seen[1]);
        assert_eq!(seen[2], "\"2\"");
        assert!(seen[3].starts_with("filter or transform"), "{}", seen[3]);
        assert!(is_given_up(&seen[4]), "{}", seen[4]);
        assert_eq!(seen[5], "\"3\"");
    }
}

#[test]
fn one_operation_that_takes_for_ever_is_left_to_itself() {
    // Ten thousand million comparisons, which the interpreter does without a step of ours between most of them.
    let numbers: Vec<_> = (0..100_000).map(|n: u32| n.to_string()).collect();
    let slow = with_payload(format!("[{}]", numbers.join(",")));
    let mut preparer =
        transform("if (.payload | type) == \"array\" then last(.payload[] == .payload[]) else 1 end");
    let start = Instant::now();
    let refusal = refusal(&mut preparer, &slow);
    assert_eq!(refusal.reason, "filter or transform takes too long on this event");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(text(&message(&mut preparer, &order_paid())), "1");
}

#[test]
fn a_batch_is_answered_in_order() {
    let records: Vec<_> = (0..2000).map(|n| Record { key: Some(n.to_string()), ..order_paid() }).collect();
    let mut preparer =
        Preparer::new(&settings(Some("(.key | tonumber) % 3 != 0"), Some(".key | tonumber"))).unwrap();
    for (n, prepared) in preparer.prepare_all(&records.iter().collect::<Vec<_>>()).iter().enumerate() {
        match prepared {
            Prepared::Filtered => assert_eq!(n % 3, 0),
            Prepared::Send(message) => assert_eq!(text(message), n.to_string()),
            Prepared::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn identity_gives_the_same_document(payload in any_json()) {
        prop_assume!(!payload.contains("\\ud800"));
        let back = transformed(".payload", &with_payload(payload.clone()));
        // Members of equal names are one member to jq, and an integer -0 is 0.
        let value = |text: &str| serde_json::from_str::<Value>(text);
        if let (Ok(before), Ok(after)) = (value(&payload), value(&back)) {
            prop_assert!(is_same(&before, &after), "{payload} became {back}");
        }
    }
}

fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, left)| right.get(name).is_some_and(|right| is_same(left, right)))
        }
        _ => left == right,
    }
}

/// No other expression would help, so that is not what is advised.
#[test]
fn what_is_beyond_any_expression_is_not_blamed_on_it() {
    let large = with_payload(format!("\"{}\"", "x".repeat(8 << 20)));
    let deep = with_payload(format!("{}{}", "[".repeat(600), "]".repeat(600)));
    let torn = with_payload(r#""\ud800""#.to_owned());
    for (record, reason) in [
        (torn, "jq cannot read the event: byte offset 182: expected low surrogate"),
        (large, "the event has 8388612 bytes; filter and transform take 8388608 (8 MiB) at most"),
        (deep, "the payload is nested deeper than 512 levels, which filter and transform do not take"),
    ] {
        let refusal = refusal(&mut transform(".payload"), &record);
        assert_eq!(refusal.reason, reason);
        let policy = refusal.kind.policy();
        assert_eq!(policy.code, "beyond_jq");
        assert!(policy.advice.contains("without filter and transform"), "{}", policy.advice);
    }
}
