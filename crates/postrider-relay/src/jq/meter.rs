//! Counts the steps of an evaluation, and ends it.

use std::cell::Cell;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use jaq_core::Lut;
use jaq_core::data::{DataT, HasLut};
use jaq_json::Val;

/// Steps an event may take. A step is one term evaluated on one value, or 64 bytes made.
pub(crate) const STEPS: u32 = 500_000;
/// Of the thread that evaluates.
pub(crate) const STACK: usize = 256 << 20;
/// What evaluation itself may take of it. The rest is for what recurses without being counted, such as dropping a value that an
/// expression has nested as deeply as its steps allowed.
const DEEPEST: usize = STACK / 2;

/// The kind of data our filters run on: values, and a meter.
pub(crate) struct Metered;

impl DataT for Metered {
    type V<'a> = Val;
    type Data<'a> = Run<'a>;
}

/// One evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) lut: &'a Lut<Metered>,
    pub(crate) meter: &'a Meter<'a>,
}

impl<'a> HasLut<'a, Metered> for Run<'a> {
    /// The interpreter looks up every term it is about to evaluate: the one place that all of an evaluation passes.
    fn lut(&self) -> &'a Lut<Metered> {
        self.meter.spend(1);
        self.lut
    }
}

/// Why an evaluation was ended. Travels as the payload of an unwinding, which no `try` of an expression can catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Steps,
    Depth,
    Cancelled,
}

/// What is left of the budget.
pub(crate) struct Meter<'a> {
    left: Cell<u32>,
    /// Where the stack was when the evaluation began; it grows downwards.
    base: usize,
    cancelled: &'a AtomicBool,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(cancelled: &'a AtomicBool) -> Self {
        Self { left: Cell::new(STEPS), base: stack_position(), cancelled }
    }

    /// Takes so many steps, or unwinds.
    pub(crate) fn spend(&self, steps: u32) {
        match self.left.get().checked_sub(steps) {
            Some(left) => self.left.set(left),
            None => stop(Stop::Steps),
        }
        if self.base.saturating_sub(stack_position()) > DEEPEST {
            stop(Stop::Depth);
        }
        if self.cancelled.load(Ordering::Relaxed) {
            stop(Stop::Cancelled);
        }
    }

    /// Takes the steps for making so many bytes.
    pub(crate) fn spend_bytes(&self, bytes: usize) {
        self.spend(u32::try_from(bytes / 64).unwrap_or(u32::MAX));
    }
}

#[inline(never)]
fn stack_position() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(&here).addr()
}

/// Unwinds past the interpreter, which has no other way out, without calling the panic hook.
#[cold]
fn stop(why: Stop) -> ! {
    panic::resume_unwind(Box::new(why))
}
