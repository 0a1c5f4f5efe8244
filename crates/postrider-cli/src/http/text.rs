//! The text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

use postrider_relay::telemetry::{Metric, Shape};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct Text {
    page: String,
}

/// The samples of one metric.
pub(super) struct Family<'t> {
    page: &'t mut String,
    name: &'t str,
}

impl Text {
    /// Begins a metric. All its samples follow.
    pub(super) fn family<'t>(&'t mut self, metric: &Metric) -> Family<'t> {
        self.described(metric.name, metric.shape, metric.help)
    }

    /// As [`Text::family`], for one that is known only at run time.
    pub(super) fn described<'t>(&'t mut self, name: &'t str, shape: Shape, help: &str) -> Family<'t> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.page, "# HELP {name} {help}\n# TYPE {name} {}", self::shape(shape));
        Family { page: &mut self.page, name }
    }

    pub(super) fn finish(self) -> String {
        self.page
    }
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// For the `_bucket`, `_sum` and `_count` of a histogram.
    pub(super) fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.page, "{}{suffix}", self.name);
        for (place, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.page, "{}{name}=\"", if place == 0 { '{' } else { ',' });
            for character in value.chars() {
                match character {
                    '\\' => self.page.push_str("\\\\"),
                    '"' => self.page.push_str("\\\""),
                    '\n' => self.page.push_str("\\n"),
                    other => self.page.push(other),
                }
            }
            self.page.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.page, "{end} {value}");
    }
}

pub(super) fn shape(shape: Shape) -> &'static str {
    match shape {
        Shape::Counter => "counter",
        Shape::Gauge => "gauge",
        Shape::Histogram => "histogram",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.described("x", Shape::Gauge, "a\nb").sample(&[("sink", "a\"b\\c\nd"), ("b", "c")], 1.5);
        assert_eq!(
            text.finish(),
            "# HELP x a\\nb\n# TYPE x gauge\nx{sink=\"a\\\"b\\\\c\\nd\",b=\"c\"} 1.5\n"
        );
    }
}
