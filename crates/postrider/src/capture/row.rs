//! The row that a trigger is called for: as the function was made for it, or not at all.

use std::fmt::Write as _;

use super::expressions::mentions;
use super::generate::{Generator, literal};
use super::shape::Column;

impl Generator<'_> {
    /// The row has the columns that this function was made for, and all of them a value.
    ///
    /// What was made for other types would write what is no JSON, or other JSON, or fail with an error of its own. One expression
    /// for all columns: a statement of its own for each would cost more than the look.
    pub(super) fn row_as_expected(&self, out: &mut String) -> std::fmt::Result {
        let computed: Vec<&Column> =
            self.shape.columns.iter().filter(|column| column.r#virtual.is_some()).collect();
        if !self.handled && computed.is_empty() {
            return Ok(());
        }
        out.push_str("        if tg_op <> 'TRUNCATE' then\n");
        if self.handled && !self.shape.columns.is_empty() {
            let others: Vec<String> = self
                .shape
                .columns
                .iter()
                .map(|column| is_another(&format!("captured.{}", column.ident), column))
                .collect();
            writeln!(
                out,
                "            if {} then\n                raise datatype_mismatch using message = 'the columns of ' || tg_relid::regclass || ' have other types than its trigger was made for';\n            end if;",
                others.join("\n                or ")
            )?;
        }
        if !computed.is_empty() {
            self.compute(out, &computed, "new", "tg_op <> 'DELETE'")?;
            self.compute(out, &computed, "old", "tg_op <> 'INSERT'")?;
        }
        out.push_str("        end if;\n");
        Ok(())
    }

    /// Columns that are computed whenever they are read: triggers find null in them.
    fn compute(&self, out: &mut String, computed: &[&Column], row: &str, when: &str) -> std::fmt::Result {
        writeln!(
            out,
            "            if {when} then\n                <<{}>>\n                declare",
            self.shape.alias
        )?;
        let by: Vec<&str> = computed.iter().filter_map(|column| column.r#virtual.as_deref()).collect();
        for (ident, kind) in self.variables_for(&by) {
            writeln!(out, "                    {ident} constant {kind} := {row}.{ident};")?;
        }
        out.push_str("                begin\n");
        for column in computed {
            let by = column.r#virtual.as_deref().unwrap_or("null");
            writeln!(out, "                    {row}.{} := {};", column.ident, self.over(row, by))?;
        }
        out.push_str("                end;\n            end if;\n");
        Ok(())
    }

    /// Columns that these expressions may find as variables, each with its type.
    ///
    /// The type of a variable is looked for when the function is compiled, before any handler is at work: if it were gone by then, or
    /// had another name, every write of the table would fail. So there is none of a type that can go.
    pub(super) fn variables_for(&self, expressions: &[&str]) -> Vec<(&str, &str)> {
        let mentioned = self.shape.columns.iter().filter(|column| mentions(expressions, column));
        mentioned
            .filter_map(|column| Some((column.ident.as_str(), column.lasting_type.as_deref()?)))
            .collect()
    }

    /// An expression over a row, in brackets.
    pub(super) fn over(&self, row: &str, expression: &str) -> String {
        self.over_some(row, &format!("({expression}\n)"), [expression])
    }

    /// What has these expressions in it. Where one of them may speak of a column that is no variable, it has the columns from a query,
    /// which costs more than variables do.
    pub(super) fn over_some<'e>(
        &self,
        row: &str,
        whole: &str,
        expressions: impl IntoIterator<Item = &'e (impl AsRef<str> + ?Sized + 'e)>,
    ) -> String {
        let expressions: Vec<&str> = expressions.into_iter().map(AsRef::as_ref).collect();
        let columns: Vec<&Column> =
            self.shape.columns.iter().filter(|column| mentions(&expressions, column)).collect();
        if columns.iter().all(|column| column.lasting_type.is_some()) {
            return whole.to_owned();
        }
        let columns: Vec<String> =
            columns.iter().map(|Column { ident, .. }| format!("{row}.{ident} as {ident}")).collect();
        format!("(select {whole} from (select {}) as {})", columns.join(", "), self.shape.alias)
    }
}

/// Whether a value has another type than its column had.
pub(super) fn is_another(value: &str, column: &Column) -> String {
    format!("pg_typeof({value}) <> {}::regtype", literal(&column.any_type))
}
