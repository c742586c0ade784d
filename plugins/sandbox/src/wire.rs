//! The cloud's JSON, and what an instance of it is in the contract's words.

use crawl_provider_sdk as sdk;
use sdk::{Address, Error, Owner, Page, Reach, State, log};
use serde::{Deserialize, Serialize};

/// Boots take about this long; asking sooner only costs calls.
pub const POLL_AFTER_MS: u32 = 100;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cloud {
    pub cloud_id: String,
    pub zones: Vec<Zone>,
}

#[derive(Debug, Deserialize)]
pub struct Zone {
    pub name: String,
    pub healthy: bool,
    #[serde(default)]
    pub message: Option<String>,
    pub instances: u64,
    pub capacity: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tags {
    pub installation: String,
    pub proxy_uid: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Create {
    pub owner: Tags,
    pub incarnation: u32,
    pub spec_hash: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    pub allow_targets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub id: String,
    pub name: String,
    pub zone: String,
    pub cloud_id: String,
    pub state: String,
    #[serde(default)]
    pub message: Option<String>,
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub port: Option<u16>,
    pub owner: Tags,
    #[serde(default)]
    pub incarnation: Option<u32>,
    #[serde(default)]
    pub spec_hash: Option<String>,
    #[serde(default)]
    pub created_at: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Listing {
    pub instances: Vec<Instance>,
    #[serde(default)]
    pub next: Option<String>,
}

/// `{"error": CODE, "message": TEXT}`.
#[derive(Debug, Default, Deserialize)]
pub struct Refusal {
    pub error: String,
    #[serde(default)]
    pub message: String,
}

impl From<&Owner> for Tags {
    fn from(owner: &Owner) -> Self {
        let Owner { installation, proxy_uid, namespace, name } = owner.clone();
        Self { installation, proxy_uid, namespace, name }
    }
}

impl Instance {
    /// Only installation and UID decide what is ours.
    pub fn check_owner(&self, owner: &Owner) -> Result<(), Error> {
        if self.owner.installation == owner.installation && self.owner.proxy_uid == owner.proxy_uid {
            return Ok(());
        }
        Err(Error::foreign(format!(
            "{} in {} belongs to Proxy {}/{} (UID {}) of installation {}; it was not touched",
            self.name, self.zone, self.owner.namespace, self.owner.name, self.owner.proxy_uid, self.owner.installation
        ))
        .target(&self.zone))
    }

    pub fn into_instance(self) -> sdk::Instance {
        let message = self.message.filter(|text| !text.is_empty());
        let state = state(&self.state, message.as_deref());
        let placement = format!("{}@{}", self.zone, self.cloud_id);
        let mut instance = sdk::Instance::new(format!("sandbox://{placement}/{}", self.name), placement, state);
        instance.backend_id = Some(self.id);
        // Without a port nothing is reached at the host.
        if self.port.is_some() {
            instance.addresses = self.host.into_iter().map(|host| Address { host, reach: Reach::External }).collect();
        }
        instance.port = self.port;
        let Tags { installation, proxy_uid, namespace, name } = self.owner;
        instance.owner = Some(Owner { installation, proxy_uid, namespace, name });
        instance.incarnation = self.incarnation;
        instance.spec_hash = self.spec_hash;
        instance.created_at = self.created_at;
        instance.message = message;
        if matches!(instance.state, State::Creating | State::Deleting) {
            instance.poll_after_ms = Some(POLL_AFTER_MS);
        }
        instance
    }
}

impl Listing {
    pub fn into_page(self, installation: &str) -> Page {
        let (ours, others): (Vec<_>, Vec<_>) =
            self.instances.into_iter().partition(|one| one.owner.installation == installation);
        if !others.is_empty() {
            // A cloud that ignores its filter must not make the operator collect somebody else's instances.
            log::warn("the cloud listed instances of other installations; they were left out", &[]);
        }
        Page { instances: ours.into_iter().map(Instance::into_instance).collect(), next: self.next }
    }
}

fn state(state: &str, message: Option<&str>) -> State {
    match state {
        "booting" => State::Creating,
        "running" => State::Running,
        "stopped" => State::Stopped,
        "failed" => State::Failed(message.unwrap_or("the cloud gives no reason").to_owned()),
        "deleting" => State::Deleting,
        other => State::Unknown(format!("the cloud calls it {other}")),
    }
}

#[cfg(test)]
mod tests;
