//! Randomness that can be replayed.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

const VARIABLE: &str = "POSTRIDER_SEED";

/// The seed of a randomised test, printed so that a failure can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed in `POSTRIDER_SEED`, else a random one. Prints it to standard error, which the test harness
    /// shows when the test fails.
    ///
    /// # Panics
    /// If `POSTRIDER_SEED` is not a number: a test that was meant to repeat a failure must not run another.
    pub fn from_env_or_random(test: &str) -> Self {
        let seed = match std::env::var(VARIABLE) {
            Ok(given) => given.parse().unwrap_or_else(|error| panic!("{VARIABLE}={given}: {error}")),
            Err(_) => rand::random(),
        };
        eprintln!("seed: {VARIABLE}={seed} ({test})");
        Self(seed)
    }

    /// A given seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The number itself.
    pub fn value(self) -> u64 {
        self.0
    }

    /// A generator that yields the same numbers for the same seed.
    pub fn rng(self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }

    /// A seed of its own for one of several tasks, so that their order of running does not matter.
    #[must_use]
    pub fn for_task(self, number: u64) -> Self {
        // Neighbouring inputs give unrelated generators: seed_from_u64 mixes them.
        Self(self.0.rotate_left(17) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;

    use super::Seed;

    #[test]
    fn the_same_seed_repeats_and_tasks_differ() {
        let draw = |seed: Seed| seed.rng().random::<u64>();
        assert_eq!(draw(Seed::new(7)), draw(Seed::new(7)));
        assert_ne!(draw(Seed::new(7)), draw(Seed::new(8)));
        assert_ne!(draw(Seed::new(7).for_task(0)), draw(Seed::new(7).for_task(1)));
    }
}
