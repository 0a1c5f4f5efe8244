//! Settings of the writing session that would change an event.

use std::fmt::Write as _;

use super::generate::Generator;
use super::json;

impl Generator<'_> {
    /// Settings of the session that the text of a value depends on.
    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        let mut columns = self.shape.columns.clone();
        columns.extend(self.of_parent().into_iter().cloned());
        json::settings_with(&columns, &self.expressions())
    }

    /// Sets them as events want them.
    pub(super) fn settle(&self, out: &mut String) -> std::fmt::Result {
        let settings = self.settings();
        if settings.is_empty() {
            return Ok(());
        }
        out.push_str("    if restyled then\n");
        for (name, wanted) in settings {
            let differs = json::differs((name, wanted), &format!("was_{name}"));
            writeln!(
                out,
                "        was_{name} := current_setting('{name}');\n        if {differs} then perform set_config('{name}', '{wanted}', true); end if;"
            )?;
        }
        out.push_str("    end if;\n");
        Ok(())
    }

    /// Sets them back.
    pub(super) fn unsettle(&self, out: &mut String) -> std::fmt::Result {
        let settings = self.settings();
        if settings.is_empty() {
            return Ok(());
        }
        out.push_str("    if restyled then\n");
        for (name, wanted) in settings {
            let differs = json::differs((name, wanted), &format!("was_{name}"));
            writeln!(
                out,
                "        if {differs} then perform set_config('{name}', was_{name}, true); end if;"
            )?;
        }
        out.push_str("    end if;\n");
        Ok(())
    }

    /// The variables that it takes.
    pub(super) fn styles(&self, out: &mut String) -> std::fmt::Result {
        let settings = self.settings();
        if !settings.is_empty() {
            let differ: Vec<String> = settings
                .iter()
                .map(|setting| json::differs(*setting, &format!("current_setting('{}')", setting.0)))
                .collect();
            writeln!(
                out,
                "    -- The session writes values in another way than events do.\n    restyled constant boolean := {};",
                differ.join(" or ")
            )?;
        }
        for (name, _) in settings {
            writeln!(out, "    was_{name} text;")?;
        }
        Ok(())
    }
}
