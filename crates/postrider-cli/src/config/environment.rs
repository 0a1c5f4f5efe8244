//! The variables around us, taken once.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// The environment of the process, or one made for a test. Not `Debug`: it may hold passwords.
#[derive(Default)]
pub(crate) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub(crate) fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// A variable, or an error if it is no text.
    pub(crate) fn get(&self, name: &str) -> Result<Option<String>, ()> {
        self.0.get(&OsString::from(name)).map(|value| value.clone().into_string().map_err(drop)).transpose()
    }

    /// The names that begin like this.
    pub(crate) fn names<'s>(&'s self, start: &'s str) -> impl Iterator<Item = &'s str> {
        self.0.keys().filter_map(|name| name.to_str()).filter(move |name| name.starts_with(start))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
