//! `postrider man`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Write the manual pages: one for postrider and one for each of its commands
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider man ~/.local/share/man/man1
  man postrider-status")]
pub(crate) struct Man {
    /// The directory; created if it is not there
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self, json: bool) -> Result<Exit, Failure> {
        let pages = write(&self.directory)
            .with_context(|| format!("cannot write the pages to {}", self.directory.display()))
            .map_err(|error| Failure::new(Exit::Failed, error))?;
        output::say(&format!("wrote {} pages to {}", pages.len(), self.directory.display()));
        if json {
            output::json(&json!({ "pages": pages }))?;
        }
        Ok(Exit::Fine)
    }
}

/// The names of the files.
fn write(directory: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(directory)?;
    let mut command = cli::command();
    // The pages are named after their command: postrider-dead-list.1.
    command.build();
    let mut pages = Vec::new();
    write_page(&command, directory, &mut pages)?;
    Ok(pages)
}

fn write_page(command: &clap::Command, directory: &Path, pages: &mut Vec<String>) -> io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        write_page(part, directory, pages)?;
    }
    let man = clap_mangen::Man::new(command.clone());
    let name = man.get_filename();
    let mut page = Vec::new();
    man.render(&mut page)?;
    fs::write(directory.join(&name), page)?;
    pages.push(name);
    Ok(())
}
