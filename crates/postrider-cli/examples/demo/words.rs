//! Figures and texts, made to fit.

use std::time::Duration;

use time::OffsetDateTime;

/// At most `width` characters, on one line, and nothing that a terminal would obey.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(width + 1).collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

pub(crate) fn clock(at: OffsetDateTime) -> String {
    let (hour, minute, second, milli) = at.to_hms_milli();
    format!("{hour:02}:{minute:02}:{second:02}.{milli:03}")
}

pub(crate) fn span(time: Duration) -> String {
    if time >= Duration::from_secs(1) {
        return format!("{:.1} s", time.as_secs_f64());
    }
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

pub(crate) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Sorts them.
pub(crate) fn percentiles(times: &mut [Duration]) -> Option<(Duration, Duration)> {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
    Some((*at(50)?, *at(99)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_and_obey_nothing() {
        assert_eq!(cut("naïve", 5), "naïve");
        assert_eq!(cut("naïveté", 5), "naïv…");
        assert_eq!(cut("a\x1b[2Jb\n", 9), "a [2Jb ");
        assert_eq!((thousands(999), thousands(1_234_567)), ("999".to_owned(), "1,234,567".to_owned()));
        assert_eq!(span(Duration::from_micros(4250)), "4.2 ms");
        assert_eq!(span(Duration::from_millis(5100)), "5.1 s");
    }
}
