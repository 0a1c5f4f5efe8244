//! A small harness for benchmarks: alternating pairs with a control, a table on the screen, and a file for machines.
//!
//! A comparison runs *ours, rival, rival again* several times over: the median of ours/rival is the figure, the median of
//! rival/rival beside it says how much of that is noise of the machine.

mod figure;
mod rivals;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

pub use figure::{Figure, Goal, Pairs, Spread, median, pairs, quantile};
pub use rivals::{copy_log, print_facts};

/// Exit code of `--strict` when a goal is missed.
const MISSED: u8 = 2;

/// A run of a benchmark: what was asked for, and the figures so far.
#[derive(Debug, Default)]
pub struct Bench {
    strict: bool,
    quick: bool,
    filters: Vec<String>,
    figures: Vec<Figure>,
}

impl Bench {
    /// From the words after the program's name: `[--strict] [--quick] [FIGURE-FILTER...]`.
    pub fn from_arguments(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut bench = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--strict" => bench.strict = true,
                "--quick" => bench.quick = true,
                // Cargo adds it by itself.
                "--bench" => {}
                flag if flag.starts_with('-') => {
                    bail!("unknown flag {flag}; usage: [--strict] [--quick] [FIGURE-FILTER...]")
                }
                _ => bench.filters.push(argument),
            }
        }
        Ok(bench)
    }

    /// The first size, or the second for a quick run.
    pub fn size(&self, full: u32, quick: u32) -> u32 {
        if self.quick { quick } else { full }
    }

    /// Whether a figure of this name was asked for.
    pub fn wants(&self, figure: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| figure.contains(filter.as_str()))
    }

    /// Takes a figure, and says so: a run takes minutes.
    pub fn add(&mut self, figure: Figure) {
        if self.wants(&figure.name) {
            println!("  {}", figure.cells().join("  ").trim_end());
            self.figures.push(figure);
        }
    }

    /// Prints the table, writes the file after a complete run, and judges.
    pub fn finish(self, file: &Path) -> Result<ExitCode> {
        ensure!(!self.figures.is_empty(), "no figure matches {}", self.filters.join(" "));
        print!("\n{}", self.table());
        if self.quick {
            println!("\nquick: sizes are too small to judge by; nothing was written");
        } else if self.filters.is_empty() {
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            let figures: Vec<Value> = self.figures.iter().map(Figure::json).collect();
            let text = serde_json::to_string_pretty(&figures)? + "\n";
            fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
            println!("\nwritten to {}", file.display());
        }
        let missed = self.figures.iter().any(|figure| figure.is_met() == Some(false));
        Ok(if self.strict && missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
    }

    fn table(&self) -> String {
        let head =
            ["figure", "ours", "rival", "ratio", "A/A control", "runs", "goal", "met"].map(str::to_owned);
        let lines: Vec<[String; 8]> =
            std::iter::once(head).chain(self.figures.iter().map(Figure::cells)).collect();
        let widths: [usize; 8] = std::array::from_fn(|column| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
        });
        let mut table = String::new();
        for line in &lines {
            let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            table.push_str(cells.collect::<Vec<String>>().join("  ").trim_end());
            table.push('\n');
        }
        for figure in self.figures.iter().filter(|figure| figure.is_met() == Some(false)) {
            if let Some(reason) = figure.why_missed() {
                let _ = write!(table, "\nmissed: {}\n  {reason}\n", figure.name);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::Bench;

    #[test]
    fn cargos_own_flag_is_ignored_and_filters_match_parts_of_names() {
        let bench = Bench::from_arguments(["wake", "--bench"].map(str::to_owned)).unwrap();
        assert!(bench.wants("idle wake-up p50") && !bench.wants("emit"));
        assert!(Bench::from_arguments(["--fast".to_owned()]).is_err());
    }
}
