//! Every sink, against its real server: what `postrider_testkit::conformance` asks of it, and the faults of its broker by their numbers.

mod file;
