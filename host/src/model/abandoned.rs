//! Instances that a human gave up: nobody deletes them, and they are remembered after their Proxy is gone.

use std::fmt;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::instance::Instance;
use super::proxy::Proxy;
use super::spec_hash::hex;

/// So many are remembered; then some have to be forgotten before another is given up.
pub const ABANDONED: usize = 2000;

/// One instance that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Abandoned {
    /// UID of its Proxy.
    pub proxy_uid: String,
    /// Namespace of the Proxy.
    pub namespace: String,
    /// Name of the Proxy.
    pub name: String,
    /// Name of the Provider.
    pub provider: String,
    /// Its incarnation; none: all of them, of a Proxy whose status was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u32>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// What the provider called it.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// When it was given up.
    pub since: Timestamp,
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.provider_id, &self.placement, self.incarnation) {
            (Some(id), _, _) => f.write_str(id),
            (None, Some(placement), Some(incarnation)) => write!(f, "incarnation {incarnation} at {placement}"),
            _ => write!(f, "whatever Provider {} has of it", self.provider),
        }
    }
}

impl Abandoned {
    /// All instances of a Proxy that its status names; where it names none, whatever there is of it.
    pub fn of(proxy: &Proxy, since: Timestamp) -> Vec<Self> {
        let whole = Self {
            proxy_uid: proxy.uid().unwrap_or_default(),
            namespace: proxy.namespace().unwrap_or_default(),
            name: proxy.name_any(),
            provider: proxy.spec.provider.clone(),
            incarnation: None,
            placement: None,
            provider_id: None,
            since,
        };
        let named = proxy.status.iter().flat_map(|status| status.instances()).map(|instance| Self {
            incarnation: Some(instance.incarnation),
            placement: instance.placement.clone(),
            provider_id: instance.provider_id.clone(),
            ..whole.clone()
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() { vec![whole] } else { named }
    }

    /// Under which it is kept: the same for the same instance.
    pub fn key(&self) -> String {
        let whole = format!("{}/{:?}/{:?}", self.proxy_uid, self.incarnation, self.placement);
        hex(&Sha256::digest(whole)[..16])
    }

    /// Whether this is the instance.
    pub fn is(&self, shown: &Instance) -> bool {
        shown.owner.as_ref().is_some_and(|owner| owner.proxy_uid == self.proxy_uid)
            && self.incarnation.is_none_or(|incarnation| shown.incarnation == Some(incarnation))
            && self.placement.as_ref().is_none_or(|placement| shown.placement == *placement)
    }
}
