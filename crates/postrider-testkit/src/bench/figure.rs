//! Figures: what was measured, against what, and whether that is enough.

use anyhow::Result;
use serde_json::{Value, json};

/// What a figure has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// ours / rival is at least this.
    RatioAtLeast(f64),
    /// ours / rival is at most this.
    RatioAtMost(f64),
    /// Ours is at most this.
    AtMost(f64),
    /// Ours is less than this.
    Below(f64),
}

impl Goal {
    fn is_met(self, ours: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::RatioAtLeast(goal) => ratio.is_some_and(|ratio| ratio >= goal),
            Self::RatioAtMost(goal) => ratio.is_some_and(|ratio| ratio <= goal),
            Self::AtMost(goal) => ours <= goal,
            Self::Below(goal) => ours < goal,
        }
    }

    fn text(self) -> String {
        match self {
            Self::RatioAtLeast(goal) => format!("ratio >= {goal}"),
            Self::RatioAtMost(goal) => format!("ratio <= {goal}"),
            Self::AtMost(goal) => format!("<= {goal}"),
            Self::Below(goal) => format!("< {goal}"),
        }
    }
}

/// The median, lowest and highest of some ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { median: median(values), low, high }
    }
}

/// What alternating pairs came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// The median of ours.
    pub ours: f64,
    /// The median of the rival's first runs.
    pub rival: f64,
    /// ours / rival, pair by pair.
    pub ratio: Spread,
    /// The control: rival / rival.
    pub noise: Spread,
    /// Number of pairs.
    pub runs: usize,
}

impl Pairs {
    /// From the runs in the order (ours, rival, rival again).
    pub fn of(runs: &[(f64, f64, f64)]) -> Self {
        let each = |pick: fn(&(f64, f64, f64)) -> f64| runs.iter().map(pick).collect::<Vec<f64>>();
        Self {
            ours: median(&each(|run| run.0)),
            rival: median(&each(|run| run.1)),
            ratio: Spread::of(&each(|run| run.0 / run.1)),
            noise: Spread::of(&each(|run| run.2 / run.1)),
            runs: runs.len(),
        }
    }
}

/// Runs ours, the rival and the rival again, `runs` times over. Each answers its measurement.
pub async fn pairs(
    runs: u32,
    mut ours: impl AsyncFnMut() -> Result<f64>,
    mut rival: impl AsyncFnMut() -> Result<f64>,
) -> Result<Pairs> {
    let mut measured = Vec::new();
    for _ in 0..runs {
        measured.push((ours().await?, rival().await?, rival().await?));
    }
    Ok(Pairs::of(&measured))
}

/// The value below which the given share of the values lies: 0.5 is the (upper) median.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut rank = 0;
    let (mut passed, step) = (0.0, 1.0 / f64::from(u32::try_from(sorted.len().max(1)).unwrap_or(u32::MAX)));
    while rank + 1 < sorted.len() && passed + step <= share + 1e-9 {
        passed += step;
        rank += 1;
    }
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// The median; of an even number of values the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (1, Some(value)) => *value,
        (0, Some(value)) => f64::midpoint(sorted[middle - 1], *value),
        _ => f64::NAN,
    }
}

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Figure {
    pub(super) name: String,
    unit: &'static str,
    ours: f64,
    rival: Option<(String, f64)>,
    ratio: Option<f64>,
    ratio_range: Option<(f64, f64)>,
    noise: Option<Spread>,
    runs: usize,
    goal: Option<Goal>,
    reason: Option<&'static str>,
}

impl Figure {
    /// A number by itself: information.
    pub fn measured(name: &str, unit: &'static str, ours: f64) -> Self {
        let name = name.to_owned();
        Self {
            name,
            unit,
            ours,
            rival: None,
            ratio: None,
            ratio_range: None,
            noise: None,
            runs: 1,
            goal: None,
            reason: None,
        }
    }

    /// From alternating pairs.
    pub fn paired(name: &str, unit: &'static str, rival: &str, pairs: &Pairs) -> Self {
        Self {
            rival: Some((rival.to_owned(), pairs.rival)),
            ratio: Some(pairs.ratio.median),
            ratio_range: Some((pairs.ratio.low, pairs.ratio.high)),
            noise: Some(pairs.noise),
            runs: pairs.runs,
            ..Self::measured(name, unit, pairs.ours)
        }
    }

    /// Two numbers, measured once.
    pub fn compared(name: &str, unit: &'static str, ours: f64, rival: &str, with: f64) -> Self {
        Self {
            rival: Some((rival.to_owned(), with)),
            ratio: Some(ours / with),
            ..Self::measured(name, unit, ours)
        }
    }

    /// What it has to reach. A limit for ours alone becomes its rival.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        if let Goal::AtMost(limit) | Goal::Below(limit) = goal {
            self.rival = Some(("goal".to_owned(), limit));
            self.ratio = (limit > 0.0).then(|| self.ours / limit);
        }
        self.goal = Some(goal);
        self
    }

    /// Why it is as it is, shown when the goal is missed.
    #[must_use]
    pub fn reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// How many runs or samples stand behind it.
    #[must_use]
    pub fn runs(mut self, runs: usize) -> Self {
        self.runs = runs;
        self
    }

    pub(super) fn is_met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.ours, self.ratio))
    }

    /// Why the goal is missed, if it is: what is known of the figure, or what the control says of the machine.
    pub(super) fn why_missed(&self) -> Option<String> {
        if self.is_met() != Some(false) {
            return None;
        }
        if let Some(reason) = self.reason {
            return Some(reason.to_owned());
        }
        let (Some(ratio), Some(noise), Some(Goal::RatioAtLeast(goal) | Goal::RatioAtMost(goal))) =
            (self.ratio, self.noise, self.goal)
        else {
            return Some("no reason is known: measure it again on a quiet machine".to_owned());
        };
        let swing = (noise.high - 1.0).max(1.0 - noise.low);
        let chance = if (ratio - goal).abs() <= swing * goal {
            "so little may be chance: measure it again on a quiet machine"
        } else {
            "that does not explain it, and no other reason is known"
        };
        Some(format!(
            "it is off by {}, and the rival against itself by up to {}; {chance}",
            number((ratio - goal).abs() / goal),
            number(swing)
        ))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "figure": self.name, "unit": self.unit, "ours": self.ours,
            "rival": self.rival.as_ref().map(|(_, value)| value), "rival_name": self.rival.as_ref().map(|(name, _)| name),
            "ratio": self.ratio, "ratio_low": self.ratio_range.map(|range| range.0), "ratio_high": self.ratio_range.map(|range| range.1),
            "noise": self.noise.map(|noise| noise.median),
            "noise_low": self.noise.map(|noise| noise.low), "noise_high": self.noise.map(|noise| noise.high),
            "runs": self.runs, "goal": self.goal.map(Goal::text), "met": self.is_met(), "reason": self.why_missed(),
        })
    }

    pub(super) fn cells(&self) -> [String; 8] {
        let ratio = self.ratio.map(number).unwrap_or_default();
        let range = self.ratio_range.map(|(low, high)| format!(" ({}-{})", number(low), number(high)));
        let noise = self
            .noise
            .map(|noise| format!("{} ({}-{})", number(noise.median), number(noise.low), number(noise.high)));
        let met = match self.is_met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        [
            self.name.clone(),
            format!("{} {}", number(self.ours), self.unit),
            self.rival.as_ref().map(|(name, value)| format!("{} {name}", number(*value))).unwrap_or_default(),
            format!("{ratio}{}", range.unwrap_or_default()),
            noise.unwrap_or_default(),
            self.runs.to_string(),
            self.goal.map(Goal::text).unwrap_or_default(),
            met.to_owned(),
        ]
    }
}

/// Three digits that matter, and no more noise than that.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        small if small >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal, Pairs, median, quantile};

    fn close(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() < 1e-9
    }

    #[test]
    fn medians_and_quantiles() {
        assert!(close(median(&[3.0, 1.0, 2.0]), 2.0));
        assert!(close(median(&[4.0, 1.0, 2.0, 3.0]), 2.5));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert!(close(quantile(&hundred, 0.99), 100.0));
        assert!(close(quantile(&hundred, 0.5), 51.0));
    }

    #[test]
    fn a_pair_is_judged_by_the_median_of_its_ratios() {
        let pairs = Pairs::of(&[(1.0, 2.0, 2.0), (9.0, 10.0, 11.0), (8.0, 10.0, 9.0)]);
        assert!(close(pairs.ratio.median, 0.8) && close(pairs.noise.median, 1.0));
        let figure = Figure::paired("f", "rows/s", "r", &pairs);
        assert_eq!(figure.clone().goal(Goal::RatioAtLeast(0.8)).is_met(), Some(true));
        let missed = figure.clone().goal(Goal::RatioAtMost(0.7));
        assert_eq!(missed.is_met(), Some(false));
        assert_eq!(
            missed.why_missed().unwrap(),
            "it is off by 0.14, and the rival against itself by up to 0.10; that does not explain it, and no other reason is known"
        );
        assert!(figure.goal(Goal::RatioAtMost(0.75)).why_missed().unwrap().contains("may be chance"));
    }

    #[test]
    fn a_limit_is_its_own_rival() {
        let figure = Figure::measured("f", "ms", 3.0).goal(Goal::AtMost(2.0));
        assert_eq!(figure.json()["rival_name"], "goal");
        assert_eq!(figure.json()["met"], false);
        assert_eq!(
            Figure::measured("f", "", 0.0).goal(Goal::AtMost(0.0)).json()["ratio"],
            serde_json::Value::Null
        );
    }
}
