//! The sinks there are: one folder each, one arm here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sink::{Sink, Unavailable};

mod custom;
#[cfg(feature = "null")]
pub mod null;

pub use custom::Custom;

/// Where a sink goes, as it stands in the configuration.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Target {
    /// Builds every message and drops it: for measuring.
    #[cfg(feature = "null")]
    Null(null::NullConfig),
    /// A sink of your own, in a program that embeds the relay.
    #[serde(skip)]
    Custom(Custom),
}

impl Target {
    /// What it is called in the configuration.
    pub fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "null")]
            Self::Null(_) => "null",
            Self::Custom(custom) => custom.kind(),
        }
    }

    /// Opens it.
    pub async fn open(&self) -> Result<Box<dyn Sink>, Unavailable> {
        match self {
            #[cfg(feature = "null")]
            Self::Null(_) => Ok(Box::new(null::Null)),
            Self::Custom(custom) => custom.open().await,
        }
    }

    /// The routing template it has by default; empty where a sink has no destinations.
    pub fn default_route(&self) -> &'static str {
        ""
    }

    /// Whether one relay has to hold all lanes: two could not write to one file.
    pub fn is_exclusive(&self) -> bool {
        match self {
            Self::Custom(custom) => custom.is_exclusive(),
            #[cfg(feature = "null")]
            Self::Null(_) => false,
        }
    }
}
