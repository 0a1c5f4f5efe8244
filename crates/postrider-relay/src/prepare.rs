//! From a record to a message: filter, transform, route, envelope.

use postrider::log::Record;

use crate::envelope::{self, Envelope, Event};
use crate::jq::{self, Jq, Verdict};
use crate::json;
use crate::route::Template;
use crate::settings::SinkSettings;
use crate::sink::{EventId, Message, Refusal, RefusalKind};
use crate::sinks::Target;

/// What became of a record.
#[derive(Debug)]
pub enum Prepared<'a> {
    /// To be delivered.
    Send(Message<'a>),
    /// The filter says no.
    Filtered,
    /// It cannot be made into a message.
    Refused(Refusal),
}

/// Everything that is compiled once per sink.
pub struct Preparer {
    jq: Option<Jq>,
    route: Option<Template>,
    envelope: Box<dyn Envelope>,
    target: Target,
}

impl Preparer {
    /// Compiles the expressions and templates of a sink.
    pub fn new(settings: &SinkSettings) -> Result<Self, PrepareError> {
        Ok(Self {
            jq: Jq::new(settings.filter.as_deref(), settings.transform.as_deref())?,
            route: route(settings)?,
            envelope: envelope::envelope(settings.envelope, &settings.source, settings.target.kind())?,
            target: settings.target.clone(),
        })
    }

    /// Everything that keeps a sink's expressions and templates from being compiled, where [`Preparer::new`] stops at the first.
    pub fn objections(settings: &SinkSettings) -> Vec<PrepareError> {
        let expression = |key, code: &Option<String>| jq::check(key, code.as_deref()?).err();
        [
            expression("filter", &settings.filter),
            expression("transform", &settings.transform),
            route(settings).err(),
            envelope::envelope(settings.envelope, &settings.source, settings.target.kind()).err(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Makes a message of a record. With a `filter` or `transform` it waits for another thread, at most a few seconds
    /// for an expression that does not end; [`Preparer::prepare_all`] waits once for many records.
    pub fn prepare<'a>(&mut self, record: &'a Record) -> Prepared<'a> {
        match &mut self.jq {
            None => self.finish(record, &record.payload),
            Some(jq) => {
                let verdict = jq.judge([record]).pop();
                self.conclude(
                    record,
                    verdict.unwrap_or_else(|| Verdict::Fail("jq gave no verdict".to_owned())),
                )
            }
        }
    }

    /// Makes messages of records, one answer for each, in order. An expression that fails, or does not end, fails its event alone.
    pub fn prepare_all<'a>(&mut self, records: &[&'a Record]) -> Vec<Prepared<'a>> {
        let Some(jq) = &mut self.jq else {
            return records.iter().map(|record| self.finish(record, &record.payload)).collect();
        };
        let verdicts = jq.judge(records.iter().copied());
        records.iter().zip(verdicts).map(|(record, verdict)| self.conclude(record, verdict)).collect()
    }

    /// Whether [`Preparer::prepare`] waits for another thread. An engine with other work on its own thread may want to know.
    pub fn waits(&self) -> bool {
        self.jq.is_some()
    }

    fn conclude<'a>(&self, record: &'a Record, verdict: Verdict) -> Prepared<'a> {
        match verdict {
            Verdict::Keep => self.finish(record, &record.payload),
            Verdict::Replace(payload) => self.finish(record, &payload),
            Verdict::Drop => Prepared::Filtered,
            Verdict::Fail(reason) => Prepared::Refused(Refusal { kind: RefusalKind::Transform, reason }),
            Verdict::Beyond(reason) => Prepared::Refused(Refusal { kind: RefusalKind::BeyondJq, reason }),
        }
    }

    fn finish<'a>(&self, record: &'a Record, payload: &str) -> Prepared<'a> {
        let refused = |kind, reason| Prepared::Refused(Refusal { kind, reason });
        if !json::looks_like_json(payload) {
            return refused(RefusalKind::Envelope, "the payload is no JSON".to_owned());
        }
        let destination = match self.route.as_ref().map(|route| self.destination(route, record, payload)) {
            None => String::new(),
            Some(Ok(name)) => name,
            Some(Err(reason)) => return refused(RefusalKind::Route, reason),
        };
        let id = EventId::of(record);
        let event = Event { record, id, payload };
        if let Some(objection) = self.envelope.objection(&event) {
            return refused(RefusalKind::Envelope, objection.to_owned());
        }
        let mut body = Vec::with_capacity(event.expected_size());
        self.envelope.write(&event, &mut body);
        Prepared::Send(Message {
            record,
            id,
            destination,
            content_type: self.envelope.content_type(),
            headers: self.envelope.headers(&event),
            body,
        })
    }

    fn destination(&self, route: &Template, record: &Record, payload: &str) -> Result<String, String> {
        let name = route.render(record, payload)?;
        self.target.check_destination(&name).map(|()| name)
    }
}

fn route(settings: &SinkSettings) -> Result<Option<Template>, PrepareError> {
    let target = &settings.target;
    let route = match settings.route.as_deref() {
        Some(_) if !target.has_destinations() => {
            let kind = target.kind();
            return Err(PrepareError {
                key: "route",
                message: format!("a {kind} sink has one destination, itself; take the route out"),
            });
        }
        Some(route) => Some(route),
        None => Some(target.default_route()).filter(|route| !route.is_empty()),
    };
    let Some(template) = route.map(Template::parse).transpose()? else { return Ok(None) };
    // What is written out stays, whatever an event says: every single one would be refused.
    match template.sample().and_then(|name| target.check_destination(&name)) {
        Ok(()) => Ok(Some(template)),
        Err(why) => Err(PrepareError { key: "route", message: format!("no event has a destination: {why}") }),
    }
}

/// An expression or template that cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {message}")]
pub struct PrepareError {
    /// `filter`, `transform`, `route`, `envelope` or `source`.
    pub key: &'static str,
    /// What is wrong with it, and where.
    pub message: String,
}
