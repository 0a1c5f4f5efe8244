//! `postrider completions`.

use clap::Args;
use clap_complete::Shell;
use serde_json::json;

use crate::cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Print a script that completes the words of this command in a shell
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider completions bash > ~/.local/share/bash-completion/completions/postrider
  postrider completions zsh > ~/.zfunc/_postrider
  postrider completions fish > ~/.config/fish/completions/postrider.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "postrider", &mut script);
        let script = String::from_utf8_lossy(&script);
        if json {
            output::json(&json!({ "shell": self.shell.to_string(), "script": script }))?;
        } else {
            output::data(&script)?;
        }
        Ok(Exit::Fine)
    }
}
