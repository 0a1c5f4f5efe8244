//! Sizes as people write them.

/// Largest first within a base: `kB`, `MB`, `GB` count in thousands, `KiB`, `MiB`, `GiB` in 1024s.
const UNITS: &[(&str, i64)] = &[
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("b", 1),
];

/// `PostgreSQL` keeps no single value of a gibibyte.
const TOO_LARGE: i64 = 1 << 30;

/// Reads `16MiB`, `64MB` or a plain number of bytes.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit))).unwrap_or((&lower, 1));
    let number = digits.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a whole number of bytes is needed, such as 67108864, 64MB or 16MiB".to_owned());
    }
    let bytes = number.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    match bytes {
        Some(0) => Err("nothing could be emitted; give at least 1".to_owned()),
        Some(bytes) if bytes < TOO_LARGE => Ok(bytes),
        _ => Err("PostgreSQL stores no value of 1GiB or more".to_owned()),
    }
}

/// So many bytes, with one digit behind the point.
pub(crate) fn text(bytes: i64) -> String {
    const UNITS: &[(i64, &str)] = &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let Some((unit, name)) = UNITS.iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit)
}

#[cfg(test)]
mod tests {
    use super::{parse, text};

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        assert_eq!([text(12), text(73_728), text(2_500_000_000)], ["12 B", "73.7 kB", "2.5 GB"]);
    }

    #[test]
    fn takes_units_of_both_kinds_and_plain_bytes() {
        let cases = [
            ("1", 1),
            ("67108864", 67_108_864),
            ("10b", 10),
            ("64MB", 64_000_000),
            ("16MiB", 16 * 1024 * 1024),
            ("16 mib", 16 * 1024 * 1024),
            ("5kB", 5_000),
            ("5KiB", 5 * 1024),
            ("1GB", 1_000_000_000),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        let texts = [
            "",
            "MB",
            "0",
            "-1",
            "1.5MB",
            "64M B",
            "64TB",
            "1GiB",
            "9223372036854775807",
            "9223372036854775807MB",
            "99999999999999999999",
        ];
        for text in texts {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
