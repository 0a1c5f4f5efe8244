//! Breadth-first search through every state of the model.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use super::world::{Model, Step, World};

/// What the search has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Different states.
    pub(super) states: usize,
    /// Steps between them.
    pub(super) steps: usize,
    /// States that are [`Wrong`](super::world::Wrong) in this way.
    pub(super) stuck: usize,
    /// The same.
    pub(super) overslept: usize,
    /// The same.
    pub(super) deaf: usize,
    /// Steps that make [noise](Step::noisy).
    pub(super) noisy: usize,
    /// A shortest way to something wrong.
    trace: Vec<Step>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, stuck, overslept, deaf, noisy, trace } = self;
        write!(
            f,
            "{states} states, {steps} steps: {stuck} stuck, {overslept} overslept, {deaf} deaf; {noisy} noisy steps"
        )?;
        trace.iter().try_for_each(|step| write!(f, "\n    {} {}", step.who, step.what))
    }
}

/// A set of states.
pub(super) type Worlds = HashSet<World, BuildHasherDefault<Quick>>;

/// Visits every state that can be reached, and returns them too.
pub(super) fn explore(model: Model) -> (Found, Vec<World>) {
    let mut found = Found::default();
    let mut reached = vec![World::new(model)];
    let mut parents = vec![0];
    let mut known: Worlds = reached.iter().cloned().collect();
    let mut steps = Vec::new();
    while found.states < reached.len() {
        let here = found.states;
        let wrong = reached[here].wrong();
        if (wrong.stuck || wrong.deaf) && found.trace.is_empty() {
            found.trace = trace(model, &reached, &parents, here);
        }
        found.states += 1;
        found.stuck += usize::from(wrong.stuck);
        found.overslept += usize::from(wrong.overslept);
        found.deaf += usize::from(wrong.deaf);
        reached[here].steps(model, &mut steps);
        found.steps += steps.len();
        for (step, world) in steps.drain(..) {
            found.noisy += usize::from(step.noisy);
            if !known.contains(&world) {
                known.insert(world.clone());
                reached.push(world);
                parents.push(here);
            }
        }
    }
    (found, reached)
}

/// The steps from the beginning to a state. In a reduced model the relays change names on the way.
fn trace(model: Model, reached: &[World], parents: &[usize], mut here: usize) -> Vec<Step> {
    let mut trace = Vec::new();
    let mut steps = Vec::new();
    while here != 0 {
        let parent = parents[here];
        reached[parent].steps(model, &mut steps);
        trace.extend(steps.drain(..).find(|(_, world)| *world == reached[here]).map(|(step, _)| step));
        here = parent;
    }
    trace.reverse();
    trace
}

/// A hash of many small numbers that is fast without optimisation.
#[derive(Default)]
pub(super) struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
