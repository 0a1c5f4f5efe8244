//! Schedules: the five fields of cron, and what becomes of ticks that were missed.

use serde::Serialize;
use serde_json::Value;
use time::{Date, PrimitiveDateTime, Time};

/// What becomes of ticks that passed while no worker was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missed {
    /// None of them runs, unless it is less than a minute late.
    Skip,
    /// One job, for the last of them.
    #[default]
    Last,
    /// A job for each, a thousand at most.
    All,
}

impl Missed {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}

/// A job that is enqueued by the clock. Every worker that runs may have it: each tick is enqueued once.
#[derive(Debug, Clone)]
#[must_use = "a schedule is kept by a worker: `Worker::cron`"]
pub struct Cron {
    pub(super) name: String,
    pub(super) expression: String,
    pub(super) kind: String,
    pub(super) payload: Value,
    pub(super) time_zone: String,
    pub(super) queue: String,
    pub(super) priority: i16,
    pub(super) max_attempts: u16,
    pub(super) missed: Missed,
}

impl Cron {
    /// `Cron::new("nightly", "30 2 * * *", "report.make", &())`: minute, hour, day of the month, month, day of the week, or `@hourly`,
    /// `@daily`, `@weekly`, `@monthly`, `@yearly`. The time is that of UTC.
    pub fn new(
        name: impl Into<String>,
        expression: impl Into<String>,
        kind: impl Into<String>,
        payload: &impl Serialize,
    ) -> Self {
        Self {
            name: name.into(),
            expression: expression.into(),
            kind: kind.into(),
            payload: serde_json::to_value(payload).unwrap_or_default(),
            time_zone: "UTC".to_owned(),
            queue: "default".to_owned(),
            priority: 0,
            max_attempts: 25,
            missed: Missed::default(),
        }
    }

    /// By the clocks of another place, `Europe/Berlin`. A local time that is skipped when clocks go forward ticks an hour later; one that
    /// comes twice ticks once.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// In this queue, and not in `default`.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// With this priority.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// What becomes of missed ticks; [`Missed::Last`] if nothing is said.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }
}

/// When a schedule ticks: for each field the values that fit, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expression {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// With both days restricted, either will do: cron has always been like that.
    either_day: bool,
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Expression {
    /// Reads five fields or one of the names.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fields = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!(
                "{text:?} has {} fields; it takes minute, hour, day, month and weekday",
                fields.len()
            ));
        };
        let mut days_of_week = field(weekdays, 0, 7, &WEEKDAYS)?;
        // Sunday is 0 and 7.
        days_of_week = (days_of_week | days_of_week >> 7) & 0x7f;
        let expression = Self {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            weekdays: days_of_week,
            either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
        };
        if expression.next_day(Date::MIN.replace_year(2000).map_err(|error| error.to_string())?).is_none() {
            return Err(format!("{text:?} names a day that never comes"));
        }
        Ok(expression)
    }

    /// The first tick after this moment.
    pub fn after(&self, moment: PrimitiveDateTime) -> PrimitiveDateTime {
        let (mut date, mut from) =
            (moment.date(), u32::from(moment.hour()) * 60 + u32::from(moment.minute()) + 1);
        loop {
            let Some(day) = self.next_day(date) else { return PrimitiveDateTime::MAX };
            if day != date {
                from = 0;
            }
            for minute in from..24 * 60 {
                if self.hours >> (minute / 60) & 1 == 1 && self.minutes >> (minute % 60) & 1 == 1 {
                    let time = Time::MIDNIGHT + time::Duration::minutes(i64::from(minute));
                    return PrimitiveDateTime::new(day, time);
                }
            }
            let Some(next) = day.next_day() else { return PrimitiveDateTime::MAX };
            (date, from) = (next, 0);
        }
    }

    /// The first day from this one on that fits; none within the eight years in which every leap day comes.
    fn next_day(&self, from: Date) -> Option<Date> {
        std::iter::successors(Some(from), |day| day.next_day())
            .take(366 * 8 + 2)
            .find(|day| self.has_day(*day))
    }

    fn has_day(&self, date: Date) -> bool {
        let in_month = self.days >> date.day() & 1 == 1;
        let in_week = self.weekdays >> date.weekday().number_days_from_sunday() & 1 == 1;
        let is_day = if self.either_day { in_month || in_week } else { in_month && in_week };
        self.months >> u8::from(date.month()) & 1 == 1 && is_day
    }
}

/// `*`, `7`, `1-5`, `*/10`, `mon-fri`, and lists of these.
fn field(text: &str, lowest: u32, highest: u32, names: &[&str]) -> Result<u64, String> {
    let number = |word: &str| -> Result<u32, String> {
        let found = names.iter().position(|name| word.eq_ignore_ascii_case(name));
        let value = found.and_then(|place| u32::try_from(place).ok()).map(|place| place + lowest);
        let value = value.or_else(|| word.parse().ok());
        value
            .filter(|value| (lowest..=highest).contains(value))
            .ok_or_else(|| format!("{word:?} in {text:?} is not a number from {lowest} to {highest}"))
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step: u32 = step
                    .parse()
                    .ok()
                    .filter(|step| *step > 0)
                    .ok_or_else(|| format!("{part:?} has no step"))?;
                (range, Some(step))
            }
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (lowest, highest),
            Some((first, last)) => (number(first)?, number(last)?),
            // From there on, if there is a step.
            None => (number(range)?, if step.is_some() { highest } else { number(range)? }),
        };
        if first > last {
            return Err(format!("{range:?} in {text:?} ends before it begins"));
        }
        for value in (first..=last).step_by(step.unwrap_or(1) as usize) {
            bits |= 1 << value;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn ticks(expression: &str, from: PrimitiveDateTime, count: usize) -> Vec<PrimitiveDateTime> {
        let expression = Expression::parse(expression).unwrap();
        std::iter::successors(Some(expression.after(from)), |tick| Some(expression.after(*tick)))
            .take(count)
            .collect()
    }

    #[test]
    fn ticks_are_those_of_cron() {
        let from = datetime!(2026-02-27 23:58:30);
        assert_eq!(ticks("* * * * *", from, 2), [datetime!(2026-02-27 23:59), datetime!(2026-02-28 00:00)]);
        assert_eq!(
            ticks("*/20 3 * * *", from, 2),
            [datetime!(2026-02-28 03:00), datetime!(2026-02-28 03:20)]
        );
        assert_eq!(ticks("0 0 29 2 *", from, 1), [datetime!(2028-02-29 00:00)]);
        assert_eq!(ticks("30 8 * * mon-fri", from, 1), [datetime!(2026-03-02 08:30)]);
        assert_eq!(ticks("0 0 * * 7", from, 1), [datetime!(2026-03-01 00:00)]);
        // Both days restricted: either.
        assert_eq!(ticks("0 0 1 * mon", from, 2), [datetime!(2026-03-01 00:00), datetime!(2026-03-02 00:00)]);
        assert_eq!(ticks("@monthly", from, 2), [datetime!(2026-03-01 00:00), datetime!(2026-04-01 00:00)]);
    }

    #[test]
    fn a_tick_is_after_its_moment() {
        assert_eq!(ticks("0 * * * *", datetime!(2026-01-01 01:00), 1), [datetime!(2026-01-01 02:00)]);
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_the_reason() {
        for (text, reason) in [
            ("* * * *", "has 4 fields"),
            ("60 * * * *", "not a number from 0 to 59"),
            ("5-1 * * * *", "ends before it begins"),
            ("*/0 * * * *", "has no step"),
            ("0 0 31 2 *", "never comes"),
            ("0 0 * * someday", "not a number from 0 to 7"),
        ] {
            let refused = Expression::parse(text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
