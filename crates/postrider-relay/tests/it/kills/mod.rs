//! Relays in processes of their own that are killed, frozen and told to stop under load, and a far side that keeps the books.

mod adopted;
mod confirms;
mod frozen;
mod frozen_rabbitmq;
mod load;
mod loops;
mod process;
mod shared;
mod sink;
mod stopping;
mod terminated;
mod world;

/// How many times as much is done in a soak.
fn soak() -> usize {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { 10 } else { 1 }
}
