//! Which events are shown.

use clap::Args;
use postrider::log::Record;

use crate::glob;

#[derive(Args)]
pub(crate) struct Filter {
    /// Only of this type; * stands for any text, ? for one character
    #[arg(long = "type", value_name = "PATTERN", help_heading = "Selection")]
    pub(super) event_type: Option<String>,

    /// Only of this key
    #[arg(long, help_heading = "Selection")]
    pub(super) key: Option<String>,

    /// Only of this tenant
    #[arg(long, help_heading = "Selection")]
    pub(super) tenant: Option<String>,

    /// Only of this entity
    #[arg(long, help_heading = "Selection")]
    pub(super) entity: Option<String>,
}

impl Filter {
    pub(super) fn matches(&self, record: &Record) -> bool {
        let equal = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        self.event_type.as_deref().is_none_or(|pattern| glob::matches(pattern, &record.r#type))
            && equal(&self.key, &record.key)
            && equal(&self.tenant, &record.tenant)
            && equal(&self.entity, &record.entity)
    }

    /// For LIKE.
    pub(super) fn type_like(&self) -> Option<String> {
        self.event_type.as_deref().map(glob::like)
    }
}
