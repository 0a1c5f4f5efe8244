//! The triggers of declared tables as a migration of another tool.
//!
//! The function's text is compared with what is declared, so no tool may change a letter of it: statements stand in strings that
//! are taken as they are.

use std::fmt::Write as _;

use clap::ValueEnum;
use postrider::capture::{Difference, State};

use crate::commands::plan::script;

/// Whose migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One transaction for psql
    Plain,
    /// A module with `RunSQL` and its reverse
    Django,
    /// The statements alone: sqlx brings the transaction
    Sqlx,
    /// A class with `up` and `down`
    Rails,
    /// The statements alone: Flyway brings the transaction
    Flyway,
}

/// Instead of queueing every writer behind a lock that somebody holds.
const PATIENCE: &str = "set local lock_timeout = '5s'";

const HEAD: &str = "Written by `postrider sql`: the triggers that make events of the changes of";

/// What is done, and what takes it back.
pub(super) struct Migration {
    tables: Vec<String>,
    forwards: Vec<String>,
    backwards: Vec<String>,
}

impl Migration {
    /// Orphans first, as `apply` does it; back in the opposite order.
    pub(super) fn of(differences: &[&Difference]) -> Self {
        let (orphans, declared): (Vec<&Difference>, Vec<&Difference>) =
            differences.iter().partition(|table| table.state == State::Orphaned);
        let order = || orphans.iter().chain(&declared);
        Self {
            tables: order().map(|table| table.table.clone()).collect(),
            forwards: order().flat_map(|table| table.statements.clone()).collect(),
            backwards: order().rev().flat_map(|table| table.reverse.clone()).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.forwards.is_empty()
    }

    pub(super) fn text(&self, format: Format, after: Option<&str>) -> String {
        match format {
            Format::Plain | Format::Sqlx | Format::Flyway => self.script(format, &self.forwards),
            Format::Django => self.django(after),
            Format::Rails => self.rails(),
        }
    }

    pub(super) fn reverse_script(&self, format: Format) -> String {
        self.script(format, &self.backwards)
    }

    fn script(&self, format: Format, statements: &[String]) -> String {
        let body = format!("{PATIENCE};\n{}", script(statements));
        let head = format!("-- {HEAD} {}.\n", self.tables.join(", "));
        if format == Format::Plain { format!("{head}begin;\n{body}commit;\n") } else { head + &body }
    }

    fn django(&self, after: Option<&str>) -> String {
        let dependencies = match after.and_then(|after| after.split_once('.')) {
            Some((app, name)) => format!("[({}, {})]", python(app), python(name)),
            None => "[]  # the migration before this one, as (\"app\", \"name\")".to_owned(),
        };
        // As a list: a text would be taken apart at its semicolons.
        let list = |statements: &[String]| {
            let statements = std::iter::once(PATIENCE.to_owned()).chain(statements.iter().cloned());
            statements.fold(String::new(), |mut text, statement| {
                let _ = writeln!(text, "                {},", python(&statement));
                text
            })
        };
        format!(
            "# {HEAD} {}.\n\nfrom django.db import migrations\n\n\nclass Migration(migrations.Migration):\n    dependencies = {dependencies}\n\n    \
             operations = [\n        migrations.RunSQL(\n            sql=[\n{}            ],\n            reverse_sql=[\n{}            ],\n        ),\n    ]\n",
            self.tables.join(", "),
            list(&self.forwards),
            list(&self.backwards),
        )
    }

    fn rails(&self) -> String {
        let execute = |statements: &[String]| {
            let statements = std::iter::once(PATIENCE.to_owned()).chain(statements.iter().cloned());
            statements.fold(String::new(), |mut text, statement| {
                let end = terminator(&statement);
                let _ = write!(text, "    execute <<'{end}'\n{statement}\n{end}\n");
                text
            })
        };
        format!(
            "# {HEAD} {}.\nclass PostriderCapture < ActiveRecord::Migration[6.1]\n  def up\n{}  end\n\n  def down\n{}  end\nend\n",
            self.tables.join(", "),
            execute(&self.forwards),
            execute(&self.backwards),
        )
    }
}

/// A Python string that means exactly this.
fn python(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    if text.contains('\n') { format!("\"\"\"{escaped}\"\"\"") } else { format!("\"{escaped}\"") }
}

/// A line that does not occur in the text.
fn terminator(text: &str) -> String {
    let mut end = "SQL".to_owned();
    while text.lines().any(|line| line.trim() == end) {
        end.push('_');
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_of_python_means_what_it_says() {
        assert_eq!(python("a\"b\\"), r#""a\"b\\""#);
        assert_eq!(python("a\n\"\"\"b"), "\"\"\"a\n\\\"\\\"\\\"b\"\"\"");
    }

    #[test]
    fn a_line_that_ends_a_text_does_not_occur_in_it() {
        assert_eq!(terminator("select 1"), "SQL");
        assert_eq!(terminator("select '\nSQL\n SQL_\n'"), "SQL__");
    }
}
