//! For tests: what a transaction has emitted so far.

use std::fmt;
use std::panic::Location;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{EmitError, Transaction};

const EMITTED: &str = "select row_to_json(e)::text from postrider.emitted() e";

/// An event that the open transaction has emitted, through whatever way: `emit`, a trigger, an adopted outbox table.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Emitted {
    /// Its id.
    #[serde(deserialize_with = "uuid")]
    pub id: Uuid,
    /// The id it has in an adopted outbox table.
    pub source_id: Option<String>,
    /// What happened.
    pub r#type: String,
    /// What it happened to.
    pub key: Option<String>,
    /// The customer's scope.
    pub tenant: Option<String>,
    /// The kind of thing it happened to.
    pub entity: Option<String>,
    /// The payload, byte for byte.
    pub payload: Box<RawValue>,
    /// Its headers, those of the context among them.
    #[serde(deserialize_with = "or_empty")]
    pub headers: Map<String, Value>,
}

/// What this transaction has emitted so far, in order. For tests: it reads the events back from the database.
pub async fn emitted<T: Transaction>(tx: &mut T) -> Result<Vec<Emitted>, EmitError> {
    let rows = tx.column(EMITTED, &[]).await?;
    rows.into_iter()
        .map(|row| serde_json::from_str(&row.unwrap_or_default()).map_err(EmitError::answer))
        .collect()
}

/// What [`assert_emitted`] looks for: the type, and only those parts that are set here.
#[derive(Debug, Clone)]
#[must_use = "pass it to `assert_emitted`"]
pub struct Expected {
    r#type: String,
    key: Option<String>,
    tenant: Option<String>,
    entity: Option<String>,
    payload: Option<Value>,
    headers: Map<String, Value>,
}

#[expect(clippy::needless_pass_by_value, reason = "the same calls as on `Event`")]
impl Expected {
    /// An event of this type.
    pub fn new(r#type: impl Into<String>) -> Self {
        Self {
            r#type: r#type.into(),
            key: None,
            tenant: None,
            entity: None,
            payload: None,
            headers: Map::new(),
        }
    }

    /// With this key.
    pub fn key(mut self, key: impl ToString) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// With this tenant.
    pub fn tenant(mut self, tenant: impl ToString) -> Self {
        self.tenant = Some(tenant.to_string());
        self
    }

    /// With this entity.
    pub fn entity(mut self, entity: impl Into<String>) -> Self {
        self.entity = Some(entity.into());
        self
    }

    /// With this payload, compared as JSON: neither white space nor the order of fields matters.
    ///
    /// # Panics
    ///
    /// If it cannot be turned into JSON.
    #[track_caller]
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        self.payload =
            Some(serde_json::to_value(payload).expect("the expected payload should serialise to JSON"));
        self
    }

    /// With this header, among others.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    fn is(&self, event: &Emitted) -> bool {
        let same =
            |expected: &Option<String>, found: &Option<String>| expected.is_none() || expected == found;
        self.r#type == event.r#type
            && same(&self.key, &event.key)
            && same(&self.tenant, &event.tenant)
            && same(&self.entity, &event.entity)
            && self.headers.iter().all(|(name, value)| event.headers.get(name) == Some(value))
            && self.payload.as_ref().is_none_or(|expected| {
                serde_json::from_str::<Value>(event.payload.get()).is_ok_and(|found| found == *expected)
            })
    }
}

/// Asserts, in a test, that the open transaction has emitted such an event, and returns the first that fits.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn pay(tx: &mut sqlx::PgTransaction<'_>, order: i64) -> Result<(), postrider::EmitError> { Ok(()) }
/// # #[cfg(feature = "sqlx")]
/// # async fn test(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use postrider::{Expected, assert_emitted};
/// use serde_json::json;
///
/// let mut tx = pool.begin().await?;
/// pay(&mut tx, 7).await?;
/// assert_emitted(&mut tx, Expected::new("order.paid").key(7).payload(&json!({"order": 7}))).await;
/// tx.rollback().await?; // the test leaves nothing behind
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// If there is none, with a list of what was emitted instead, or if the database cannot be asked.
#[track_caller]
pub fn assert_emitted<T: Transaction>(
    tx: &mut T,
    expected: Expected,
) -> impl Future<Output = Emitted> + Send {
    // An async function would report its own place instead of the test's.
    let place = Location::caller();
    async move {
        let events = match emitted(tx).await {
            Ok(events) => events,
            Err(error) => panic!("what was emitted could not be read, at {place}: {error}"),
        };
        if let Some(event) = events.iter().find(|event| expected.is(event)) {
            return event.clone();
        }
        let list: Vec<String> = events.iter().map(Emitted::to_string).collect();
        let list = if list.is_empty() { "nothing".to_owned() } else { list.join("\n  ") };
        panic!("no such event was emitted, at {place}\nexpected:\n  {expected}\nemitted:\n  {list}");
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.payload.as_ref().map(Value::to_string);
        line(f, &self.r#type, [&self.key, &self.tenant, &self.entity, &payload], &self.headers)
    }
}

impl fmt::Display for Emitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = Some(self.payload.get().to_owned());
        line(f, &self.r#type, [&self.key, &self.tenant, &self.entity, &payload], &self.headers)
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    r#type: &str,
    [key, tenant, entity, payload]: [&Option<String>; 4],
    headers: &Map<String, Value>,
) -> fmt::Result {
    f.write_str(r#type)?;
    for (name, value) in [("key", key), ("tenant", tenant), ("entity", entity)] {
        if let Some(value) = value {
            write!(f, " {name}={value:?}")?;
        }
    }
    if let Some(payload) = payload {
        write!(f, " payload={payload}")?;
    }
    if !headers.is_empty() {
        write!(f, " headers={}", Value::Object(headers.clone()))?;
    }
    Ok(())
}

fn uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
    Uuid::parse_str(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
