//! Times as people write and read them.

use std::time::Duration;

use postrider_relay::units::Span;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// A time, or how long ago it was: `2026-03-01T12:00:00Z`, `2026-03-01`, `15m`.
pub(crate) fn parse(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(Span(ago)) = text.parse() {
        return OffsetDateTime::now_utc()
            .checked_sub(time::Duration::try_from(ago).unwrap_or(time::Duration::MAX))
            .ok_or_else(|| "that is before the beginning of time".to_owned());
    }
    let candidates =
        [text.replacen(' ', "T", 1), format!("{text}T00:00:00Z"), format!("{}Z", text.replacen(' ', "T", 1))];
    candidates
        .iter()
        .find_map(|candidate| OffsetDateTime::parse(candidate, &Rfc3339).ok())
        .map(|moment| moment.to_offset(UtcOffset::UTC))
        .ok_or_else(|| {
            "give a time such as 2026-03-01T12:00:00Z, or how long ago it was, such as 15m, 2h or 7d"
                .to_owned()
        })
}

/// For machines and for people.
pub(crate) fn text(moment: OffsetDateTime) -> String {
    moment.format(&Rfc3339).unwrap_or_else(|_| moment.to_string())
}

/// To the second, for tables and sentences.
pub(crate) fn short(moment: OffsetDateTime) -> String {
    text(moment.replace_nanosecond(0).unwrap_or(moment)).replace('T', " ")
}

/// A duration in at most two units: `0.4 s`, `42 s`, `5 m 12 s`, `3 h 20 m`, `2 d 4 h`.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{:.1} s", duration.as_secs_f64()),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Seconds as the server computed them; its clock may have been set back meanwhile.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_in_several_forms() {
        for same in ["2026-03-01T00:00:00Z", "2026-03-01T01:00:00+01:00", "2026-03-01", "2026-03-01 00:00:00"]
        {
            assert_eq!(parse(same).map(text), Ok("2026-03-01T00:00:00Z".to_owned()), "{same}");
        }
        let ago = OffsetDateTime::now_utc() - parse("15m").unwrap();
        assert!((ago - time::Duration::minutes(15)).abs() < time::Duration::minutes(1));
        for wrong in ["", "yesterday", "15", "2026-13-01"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_have_at_most_two_units() {
        for (seconds, text) in [
            (0.44, "0.4 s"),
            (42.0, "42 s"),
            (312.0, "5 m 12 s"),
            (12_000.0, "3 h 20 m"),
            (187_200.0, "2 d 4 h"),
        ] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), text);
        }
    }
}
