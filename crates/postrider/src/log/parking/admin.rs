//! Parked events in the hands of an operator: looking, trying again, discarding.
