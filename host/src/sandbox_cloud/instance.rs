//! An instance as the API shows it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who an instance was made for. Two are the same when every field is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Owner {
    pub(super) installation: String,
    pub(super) proxy_uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Booting,
    Running,
    Stopped,
    Failed,
    Deleting,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Booting => "booting",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
        })
    }
}

/// One machine. What is secret about it is elsewhere, so that this can be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance {
    /// The cloud's own, never used twice.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) zone: String,
    pub(super) cloud_id: String,
    pub(super) state: State,
    pub(super) message: String,
    pub(super) host: String,
    /// Where the proxy listens, while it does.
    pub(super) port: Option<u16>,
    pub(super) owner: Owner,
    pub(super) incarnation: u64,
    pub(super) spec_hash: String,
    /// Seconds since 1970.
    pub(super) created_at: u64,
}
