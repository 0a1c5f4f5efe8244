//! Values of one batch, sorted into buckets before anything shared is touched.

use metrics::Histogram;

/// The upper bounds of every histogram here, in seconds. 5 is the goal for lag, so it is a bound.
pub const BUCKETS: [f64; 17] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];

/// How many values fell into each bucket, and their sum.
#[derive(Default)]
pub(super) struct Tally {
    counts: [u32; BUCKETS.len() + 1],
    sums: [f64; BUCKETS.len() + 1],
    /// Where the last one fell; its neighbours in time mostly fall there too.
    last: usize,
}

impl Tally {
    pub(super) fn add(&mut self, value: f64) {
        if !is_in(self.last, value) {
            self.last = BUCKETS.partition_point(|bound| *bound < value);
        }
        self.counts[self.last] += 1;
        self.sums[self.last] += value;
    }

    pub(super) fn count(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }

    /// The mean of each bucket, as often as it holds values: with these buckets nothing is lost, neither count nor sum.
    pub(super) fn record(&self, histogram: &Histogram) {
        for (bucket, (count, sum)) in self.counts.iter().zip(self.sums).enumerate() {
            if *count > 0 {
                // Rounding must not lift it over its own bound.
                let bound = BUCKETS.get(bucket).copied().unwrap_or(f64::INFINITY);
                histogram.record_many((sum / f64::from(*count)).min(bound), *count as usize);
            }
        }
    }
}

fn is_in(bucket: usize, value: f64) -> bool {
    let above = bucket == 0 || BUCKETS[bucket - 1] < value;
    above && BUCKETS.get(bucket).is_none_or(|bound| value <= *bound)
}
