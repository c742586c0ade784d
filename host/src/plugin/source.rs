//! Where plugins come from, and which of several serves.

pub mod directory;
pub mod oci;
pub mod upload;

use std::cmp::Reverse;
use std::fmt;
use std::path::PathBuf;

/// Where a plugin's file lies. Of several that give one name the first in this order serves: what was brought while the
/// operator runs before what it came with, and the younger ConfigMap before the older.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A reference in a registry, for the Providers that name it and for no other.
    Artifact(String),
    /// A ConfigMap.
    ConfigMap {
        /// When it was made, seconds since 1970.
        made: Reverse<i64>,
        /// NAMESPACE/NAME.
        name: String,
    },
    /// A file of the plugin folder.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Artifact(reference) => write!(f, "artifact {reference}"),
            Self::ConfigMap { name, .. } => write!(f, "ConfigMap {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
