//! Breadth-first search through every state of the model.

use std::collections::HashSet;

use super::world::{Model, Step, World};

/// What the search has found.
#[derive(Debug, Default)]
pub struct Found {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States of each kind of [`Wrong`](super::world::Wrong).
    pub stuck: usize,
    pub overslept: usize,
    pub deaf: usize,
    /// Steps that make noise.
    pub noisy: usize,
}

/// Visits every state that can be reached.
pub fn explore(model: Model) -> Found {
    let mut found = Found::default();
    let mut reached = vec![World::new(model)];
    let mut known: HashSet<World> = reached.iter().cloned().collect();
    let mut steps: Vec<(Step, World)> = Vec::new();
    while found.states < reached.len() {
        let world = reached[found.states].clone();
        found.states += 1;
        let wrong = world.wrong();
        found.stuck += usize::from(wrong.stuck);
        found.overslept += usize::from(wrong.overslept);
        found.deaf += usize::from(wrong.deaf);
        world.steps(model, &mut steps);
        found.steps += steps.len();
        for (step, after) in steps.drain(..) {
            found.noisy += usize::from(step.noisy);
            if known.insert(after.clone()) {
                reached.push(after);
            }
        }
    }
    found
}
