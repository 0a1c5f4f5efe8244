//! Routing templates.

use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::stdout::StdoutConfig;
use postrider_relay::{Preparer, RefusalKind, SinkSettings};
use proptest::prelude::*;

use crate::written::{any_record, cases, message, order_paid, refusal, to_null};

fn preparer(route: &str) -> Result<Preparer, String> {
    let settings = SinkSettings { route: Some(route.to_owned()), ..to_null() };
    Preparer::new(&settings).map_err(|error| error.to_string())
}

fn record() -> Record {
    Record {
        headers: Some(r#"{"region":"eu","x.y":"dotted","n":7}"#.to_owned()),
        payload: r#"{"a":{"b":"caf\u00e9","c":[1],"d":null},"n":1.50,"t":true}"#.to_owned(),
        ..order_paid()
    }
}

#[test]
fn a_template_renders_what_the_event_says() {
    let record = record();
    for (template, destination) in [
        ("{type}", "order.paid"),
        ("{entity}.{key}", "order.42"),
        ("{tenant}/{type.0}/{type.1}", "acme/order/paid"),
        ("events", "events"),
        ("a{{b}}{key}", "a{b}42"),
        ("app.{headers.region}", "app.eu"),
        ("app.{headers.x.y}", "app.dotted"),
        ("app.{headers.n}", "app.7"),
        ("{headers.region:eu|us}.{type}", "eu.order.paid"),
        ("app.{payload.a.b}", "app.café"),
        ("app.{payload.n}-{payload.t}", "app.1.50-true"),
    ] {
        let mut preparer = preparer(template).unwrap();
        assert_eq!(message(&mut preparer, &record).destination, destination, "{template}");
    }
    assert_eq!(message(&mut Preparer::new(&to_null()).unwrap(), &record).destination, "");
}

#[test]
fn a_template_that_cannot_be_understood_says_why() {
    for (template, part) in [
        ("{typ}", "column 1: {typ} is nothing an event has; did you mean {type}?"),
        ("a.{tennant}", "column 3: {tennant} is nothing an event has; did you mean {tenant}?"),
        ("{colour}", "there are type, entity, key, tenant, headers, payload"),
        ("{type", "column 1: the brace is never closed"),
        ("type}", "column 5: a closing brace without an opening one"),
        ("{}", "is nothing an event has"),
        ("{type.first}", "the parts of a type are counted"),
        ("{key.0}", "key has no parts"),
        ("{headers}", "name a header"),
        ("{payload}", "name a part"),
        ("a.{payload.}", "has an empty name"),
        ("a.{headers.x:}", "has an empty name"),
        (
            "{headers.x}",
            "begin the template with a literal, such as app.{headers.x}, or name what is allowed",
        ),
        ("{type}.{payload.a}", "may carry what an end user typed"),
    ] {
        let error = preparer(template).err().unwrap();
        assert!(error.starts_with("route: ") && error.contains(part), "{template}: {error}");
    }
}

#[test]
fn what_renders_no_legal_name_is_refused() {
    let record = record();
    let empty =
        Record { tenant: None, key: Some("a\nb".to_owned()), entity: Some("x".repeat(300)), ..record };
    for (template, part) in [
        ("{tenant}", "has no tenant"),
        ("{key}", "control character"),
        ("{entity}", "300 bytes"),
        ("{type.2}", "has no part 2"),
        ("a{headers.none}", "has no headers.none"),
        ("{headers.region:us|ap}", "which the template does not allow"),
        ("a{payload.a.c}", "no string, number or boolean"),
        ("a{payload.a.d}", "has no payload.a.d"),
        ("a{payload.n.x}", "has no payload.n.x"),
    ] {
        let refusal = refusal(&mut preparer(template).unwrap(), &empty);
        assert_eq!(refusal.kind, RefusalKind::Route);
        assert!(refusal.reason.contains(part), "{template}: {}", refusal.reason);
    }
    let nameless = Record { r#type: String::new(), ..order_paid() };
    assert!(refusal(&mut preparer("{type}").unwrap(), &nameless).reason.contains("empty name"));
}

#[test]
fn a_sink_without_destinations_takes_no_route() {
    let settings = SinkSettings {
        route: Some("{type}".to_owned()),
        ..SinkSettings::new("test", Target::Stdout(StdoutConfig {}))
    };
    let error = Preparer::new(&settings).err().unwrap().to_string();
    assert_eq!(error, "route: a stdout sink has one destination, itself; take the route out");
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn whatever_is_rendered_is_a_legal_name(record in any_record(), name in "[a-z]{1,8}") {
        for template in ["{type}.{key}", "{tenant}-{entity}"] {
            check(&mut preparer(template).unwrap(), &record)?;
        }
        check(&mut preparer(&format!("p.{{headers.{name}}}.{{payload.{name}}}")).unwrap(), &record)?;
    }

    #[test]
    fn no_template_panics(template in ".*|[{}a-z.:|]*") {
        if let Ok(mut preparer) = preparer(&template) {
            check(&mut preparer, &order_paid())?;
        }
    }
}

fn check(preparer: &mut Preparer, record: &Record) -> Result<(), TestCaseError> {
    use postrider_relay::Prepared;
    match preparer.prepare(record) {
        Prepared::Send(message) => {
            let name = message.destination;
            prop_assert!(name.len() <= 255 && !name.chars().any(char::is_control));
        }
        Prepared::Refused(refusal) => prop_assert_eq!(refusal.kind, RefusalKind::Route),
        Prepared::Filtered => prop_assert!(false),
    }
    Ok(())
}

/// What no event can mend is said before anything runs, and not of each event.
#[test]
fn a_template_that_never_renders_a_legal_name_is_refused() {
    use postrider_relay::sinks::kafka::KafkaConfig;
    use postrider_relay::sinks::nats::NatsConfig;
    let kafka = || Target::Kafka(KafkaConfig::new("kafka://h:9092"));
    let nats = || Target::Nats(NatsConfig::new("nats://h"));
    let with = |target: Target, route: &str| {
        let settings = SinkSettings { route: Some(route.to_owned()), ..SinkSettings::new("a", target) };
        Preparer::new(&settings).err().map(|error| error.to_string())
    };
    let long = "x".repeat(256);
    for (target, route, part) in [
        (kafka(), "a b", "is no topic of Kafka"),
        (kafka(), "{type}/x", "is no topic of Kafka"),
        (nats(), "events.*.{type}", "* and > are for those who listen"),
        (nats(), "$JS.{type}", "the server's own"),
        (nats(), "events.{type}.", "between two of its dots"),
        (kafka(), long.as_str(), "the longest is 255"),
    ] {
        let said = with(target, route).unwrap_or_default();
        assert!(said.starts_with("route: ") && said.contains(part), "{route}: {said}");
    }
    for (target, route) in [(kafka(), "{type.0}"), (nats(), "events.{type}"), (nats(), "a*{key}")] {
        assert_eq!(with(target, route), None, "{route}");
    }
}
