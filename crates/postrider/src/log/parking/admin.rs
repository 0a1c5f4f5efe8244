//! Parked events in the hands of an operator: looking, trying again, discarding.
//!
//! Whoever removes the first parked event of a key lets the next one go in the same transaction. Against a relay that parks one more
//! behind it at that moment, every such transaction locks the sink's row first.

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Postgres, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::log::error::Result;

type Query = sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments>;

const COUNT: &str =
    concat!(include_str!("../sql/parking_count.sql"), include_str!("../sql/parking_where.sql"));
const LIST: &str = concat!(
    include_str!("../sql/parking_list.sql"),
    include_str!("../sql/parking_where.sql"),
    "order by p.place limit $11"
);
const CHOOSE: &str = concat!(
    include_str!("../sql/parking_choose.sql"),
    include_str!("../sql/parking_where.sql"),
    "and p.sink = $11 order by p.place limit $12 for update of p"
);

/// Which parked events are meant: those that meet every condition that is set.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Ids of events, or the ids that the consumers of an adopted table know.
    pub ids: Vec<String>,
    /// Of this sink.
    pub sink: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// Of types like this, as SQL's LIKE understands it.
    pub type_like: Option<String>,
    /// Refused with this kind, or with these words in the reason.
    pub error: Option<String>,
    /// Parked at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Parked before this time.
    pub until: Option<OffsetDateTime>,
    /// Also those that are not dead: they are tried again, or wait behind another one.
    pub include_parked: bool,
}

impl Selection {
    fn bind(&self, statement: &'static str, after: i64, upto: i64) -> Query {
        let ids: Option<Vec<String>> = (!self.ids.is_empty())
            .then(|| self.ids.iter().flat_map(|id| [id.clone(), id.to_lowercase()]).collect());
        sqlx::query(statement)
            .bind(self.sink.clone())
            .bind(ids)
            .bind(self.key.clone())
            .bind(self.type_like.clone())
            .bind(self.error.clone())
            .bind(self.since)
            .bind(self.until)
            .bind(self.include_parked)
            .bind(after)
            .bind(upto)
    }
}

/// Where a parked event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Tried again in time.
    Waiting,
    /// Waits for an earlier event of its key.
    Behind,
    /// Not tried again until somebody says so.
    Dead,
}

impl State {
    /// As it is stored.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Behind => "behind",
            Self::Dead => "dead",
        }
    }
}

/// The table holds no other word than these.
impl From<String> for State {
    fn from(word: String) -> Self {
        match word.as_str() {
            "waiting" => Self::Waiting,
            "behind" => Self::Behind,
            _ => Self::Dead,
        }
    }
}

/// A parked event, whole.
#[derive(Debug, Clone)]
pub struct Parked {
    /// The sink that refused it.
    pub sink: String,
    /// Empty unless the sink has many of its own.
    pub destination: String,
    /// The event's id.
    pub id: Uuid,
    /// The id that the consumers of an adopted table know.
    pub source_id: Option<String>,
    /// What happened.
    pub r#type: String,
    /// To what kind of thing.
    pub entity: Option<String>,
    /// To which one.
    pub key: Option<String>,
    /// For whom.
    pub tenant: Option<String>,
    /// JSON, byte for byte.
    pub payload: String,
    /// A JSON object.
    pub headers: Option<String>,
    /// Start of the transaction that wrote it.
    pub created_at: OffsetDateTime,
    /// The lane of its key.
    pub lane: i16,
    /// Order of parking.
    pub place: i64,
    /// Where it is.
    pub state: State,
    /// How often it was refused since it was parked or retried.
    pub attempts: i32,
    /// The kind of the last refusal.
    pub kind: Option<String>,
    /// The last refusal in words.
    pub reason: Option<String>,
    /// The refusals, oldest first, as a JSON array.
    pub history: String,
    /// When it was parked.
    pub parked_at: OffsetDateTime,
    /// When it is tried again.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The event of its key that it waits for.
    pub held_by: Option<Uuid>,
}

impl Parked {
    fn of(row: &PgRow) -> Result<Self> {
        Ok(Self {
            sink: row.try_get("sink")?,
            destination: row.try_get("destination")?,
            id: row.try_get("id")?,
            source_id: row.try_get("source_id")?,
            r#type: row.try_get("type")?,
            entity: row.try_get("entity")?,
            key: row.try_get("key")?,
            tenant: row.try_get("tenant")?,
            // json travels as its text; a checked decode would parse it once more.
            payload: row.try_get_unchecked("payload")?,
            headers: row.try_get_unchecked("headers")?,
            created_at: row.try_get("created_at")?,
            lane: row.try_get("lane")?,
            place: row.try_get("place")?,
            state: State::from(row.try_get::<String, _>("state")?),
            attempts: row.try_get("attempts")?,
            kind: row.try_get("kind")?,
            reason: row.try_get("reason")?,
            history: row.try_get("history")?,
            parked_at: row.try_get("parked_at")?,
            next_attempt_at: row.try_get("next_attempt_at")?,
            held_by: row.try_get("held_by")?,
        })
    }
}

/// What a selection matches at one moment.
#[derive(Debug, Clone)]
pub struct Matched {
    /// How many events.
    pub events: i64,
    /// How many of them wait behind another one.
    pub behind: i64,
    last_place: i64,
    sinks: Vec<i32>,
}

/// Counts.
pub async fn count(connection: &mut PgConnection, selection: &Selection) -> Result<Matched> {
    let row = selection.bind(COUNT, 0, i64::MAX).fetch_one(connection).await?;
    Ok(Matched {
        events: row.try_get(0)?,
        last_place: row.try_get(1)?,
        sinks: row.try_get(2)?,
        behind: row.try_get(3)?,
    })
}

/// The first `limit` parked behind the place `after` (0: from the beginning).
pub async fn list(
    connection: &mut PgConnection,
    selection: &Selection,
    after: i64,
    limit: i64,
) -> Result<Vec<Parked>> {
    let rows = selection.bind(LIST, after, i64::MAX).bind(limit).fetch_all(connection).await?;
    rows.iter().map(Parked::of).collect()
}

/// What is done with the events of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Tries them again at once, with all attempts before them. One that waits behind another one stays there.
    Retry,
    /// Deletes them. The next event of the key goes.
    Discard,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// Events retried or discarded.
    pub events: u64,
    /// Events left alone because they wait behind another one.
    pub behind: u64,
}

/// Acts on what was counted, `batch` events in a transaction; what was parked since is left alone. `after_batch` hears of every
/// transaction that has committed.
pub async fn apply(
    connection: &mut PgConnection,
    selection: &Selection,
    matched: &Matched,
    act: Act,
    batch: i64,
    mut after_batch: impl FnMut(Done),
) -> Result<Done> {
    let mut done = Done::default();
    for &sink in &matched.sinks {
        let mut after = 0;
        while let Some((last, part)) =
            apply_batch(connection, selection, act, sink, after..matched.last_place, batch).await?
        {
            after = last;
            done.events += part.events;
            done.behind += part.behind;
            after_batch(done);
        }
    }
    Ok(done)
}

/// One transaction. Answers the last place it looked at, or `None` at the end.
async fn apply_batch(
    connection: &mut PgConnection,
    selection: &Selection,
    act: Act,
    sink: i32,
    places: std::ops::Range<i64>,
    batch: i64,
) -> Result<Option<(i64, Done)>> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    super::lock(&mut transaction, sink).await?;
    let rows = selection
        .bind(CHOOSE, places.start, places.end)
        .bind(sink)
        .bind(batch)
        .fetch_all(&mut *transaction)
        .await?;
    let mut chosen = Chosen::default();
    for row in &rows {
        chosen.take(row, act)?;
    }
    let Some(last) = chosen.last else {
        // Not left to the drop, which lets go of the sink only with the next statement.
        transaction.rollback().await?;
        return Ok(None);
    };
    let statement = match act {
        Act::Retry => include_str!("../sql/parking_retry.sql"),
        Act::Discard => include_str!("../sql/parking_discard.sql"),
    };
    let changed = sqlx::query(statement).bind(chosen.places).execute(&mut *transaction).await?;
    if act == Act::Discard {
        super::promote(&mut transaction, sink, &chosen.destinations, &chosen.keys).await?;
    }
    transaction.commit().await?;
    Ok(Some((last, Done { events: changed.rows_affected(), behind: chosen.behind })))
}

/// The events of one batch as the statements want them.
#[derive(Default)]
struct Chosen {
    places: Vec<i64>,
    destinations: Vec<String>,
    keys: Vec<String>,
    behind: u64,
    last: Option<i64>,
}

impl Chosen {
    fn take(&mut self, row: &PgRow, act: Act) -> Result<()> {
        let place = row.try_get("place")?;
        self.last = Some(place);
        if act == Act::Retry && State::from(row.try_get::<String, _>("state")?) == State::Behind {
            self.behind += 1;
            return Ok(());
        }
        if let Some(key) = row.try_get("key")? {
            self.destinations.push(row.try_get("destination")?);
            self.keys.push(key);
        }
        self.places.push(place);
        Ok(())
    }
}
