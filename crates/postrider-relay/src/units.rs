//! Durations and sizes as people write them: `5ms`, `2s`, `7d`; `500MB`, `16MiB`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// In microseconds.
const SPANS: &[(&str, u128)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("w", 604_800_000_000),
];
const SIZES: &[(&str, u128)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, SPANS).and_then(of_micros).map(Self).ok_or_else(|| {
            format!("{text:?} is no duration; write a whole number with us, ms, s, m, h, d or w, such as 5s")
        })
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, SIZES).and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is no size; write a whole number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 500MB"
            )
        })
    }
}

/// A whole number and one of the units.
fn scaled(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u128>().ok()?.checked_mul(*scale)
}

/// As many milliseconds as there is a number for: in microseconds that would be too few for what people write for "never".
fn of_micros(micros: u128) -> Option<Duration> {
    let (millis, rest) = (u64::try_from(micros / 1_000).ok()?, u32::try_from(micros % 1_000).ok()?);
    Some(Duration::from_millis(millis) + Duration::from_micros(rest.into()))
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        // Nobody counts the microseconds of ten milliseconds, and nothing at all is 0ms.
        if micros < 10_000 && !micros.is_multiple_of(1_000) {
            return write!(f, "{micros}us");
        }
        // Weeks are read, but people who write 7d want to see 7d.
        largest(f, micros / 1_000 * 1_000, &SPANS[1..6])
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        largest(f, self.0.into(), SIZES)
    }
}

/// In the largest unit that leaves no rest.
fn largest(f: &mut fmt::Formatter<'_>, number: u128, units: &[(&str, u128)]) -> fmt::Result {
    let best = units
        .iter()
        .filter(|(_, scale)| number >= *scale && number.is_multiple_of(*scale))
        .max_by_key(|(_, scale)| *scale);
    let (unit, scale) = best.unwrap_or(&units[0]);
    write!(f, "{}{unit}", number / scale)
}

macro_rules! as_text {
    ($type:ident, $pattern:literal, $what:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "description": $what })
            }
        }
    };
}

as_text!(Span, r"^[0-9]+ *(us|ms|s|m|h|d|w)$", "A duration: a whole number with us, ms, s, m, h, d or w");
as_text!(
    Size,
    r"^[0-9]+ *(B|[kKMGT]B|[KMGT]iB)$",
    "A size: a whole number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in ["500us", "1500us", "5ms", "2s", "90s", "10m", "7d", "14d", "0ms", "700000000d"] {
            assert_eq!(text.parse::<Span>().map(|span| span.to_string()), Ok(text.to_owned()));
        }
        for text in ["1B", "500MB", "16MiB", "1GB"] {
            assert_eq!(text.parse::<Size>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("60s".parse::<Span>().map(|span| span.to_string()), Ok("1m".to_owned()));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "5", "s", "-1s", "1.5s", "5 parsecs", "99999999999999999999s", "9999999999999999999d"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
