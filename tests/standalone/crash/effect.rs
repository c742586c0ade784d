//! What a standalone operator does that lasts, by name. A write that has no name fails the suite.

use proxy_operator::model::{PROVIDER_FINALIZER, PROXY_FINALIZER};
use proxy_operator_tests::interceptor::Asked;
use proxy_operator_tests::kube_api::has_finalizer;
use serde_json::Value;
use strum::VariantArray;

/// Something that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray)]
pub enum Effect {
    /// The database is there, with its format.
    DatabaseMade,
    /// The installation has an id.
    InstallationNamed,
    /// The key of derived logins is stored.
    LoginKeyMade,
    /// The ledger of leases has a nonce.
    LedgerNamed,
    /// The key that signs the ids of leases is stored.
    LeaseKeyMade,
    /// A run of the operator is counted.
    RunCounted,
    /// A Provider's manifest is taken over.
    ProviderTaken,
    /// A Provider gets our finalizer.
    ProviderFinalizerSet,
    /// A Provider says how it is.
    ProviderStatusStored,
    /// A Provider is to go.
    ProviderDeletionAsked,
    /// A Provider is let go of.
    ProviderForgotten,
    /// A Proxy's manifest is taken over.
    ProxyTaken,
    /// Another manifest of a Proxy is taken over.
    SpecTaken,
    /// Placement, incarnation and the mark of a Proxy are stored.
    PlacementStored,
    /// A Proxy gets our finalizer.
    FinalizerSet,
    /// What the backend calls the instance is stored.
    InstanceStored,
    /// Where the proxy is reached is stored.
    EndpointStored,
    /// A Proxy says something else of itself.
    StatusStored,
    /// The instance to follow gets its placement.
    NextPlaced,
    /// What the backend calls the instance to follow is stored.
    NextStored,
    /// The instance to follow takes over.
    TakenOver,
    /// An instance on its way out is forgotten.
    RetiredForgotten,
    /// A Proxy is to go.
    DeletionAsked,
    /// A Proxy under deletion says how far it is.
    DeletionStored,
    /// A Proxy is let go of.
    ProxyForgotten,
    /// That an object was deleted although its manifest is there.
    DeletionRemembered,
    /// The manifest is gone, so it need not be remembered any more.
    DeletionOutdated,
    /// An instance is given up.
    InstanceGivenUp,
    /// An instance that was given up is forgotten.
    InstanceForgotten,
    /// A lease is granted.
    LeaseGranted,
    /// A lease is lengthened.
    LeaseRenewed,
    /// A lease that is over is cleared away.
    LeaseCleared,
    /// A manifest's text is on the disk, under another name.
    ManifestWritten,
    /// The manifest has its name.
    ManifestNamed,
    /// The folder with its name is on the disk.
    FolderSynced,
    /// A manifest without objects is removed.
    ManifestRemoved,
    /// A machine is made.
    MachineCreated,
    /// A machine that was off is started.
    MachineStarted,
    /// A machine is deleted.
    MachineDeleted,
}

/// When, as seen from an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray)]
pub enum Moment {
    /// Nothing came of it.
    Before,
    /// It is there, and nobody was told.
    After,
}

/// One write to the database, as the operator logs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub table: String,
    pub key: String,
    pub change: String,
}

impl Effect {
    /// What a write does; of a Proxy or Provider that is put, `now` is the object then and `before` the one before.
    pub fn of(written: &Written, renewing: bool, now: &Value, before: &Value) -> Option<Self> {
        let stores = written.change == "put";
        Some(match (written.table.as_str(), written.key.as_str(), stores) {
            ("meta", "installation", true) => Self::InstallationNamed,
            ("meta", "ledger", true) => Self::LedgerNamed,
            ("meta", "run", true) => Self::RunCounted,
            ("keys", "login", true) => Self::LoginKeyMade,
            ("keys", "lease", true) => Self::LeaseKeyMade,
            ("proxies", _, true) => Self::of_proxy(now, before),
            ("proxies", _, false) => Self::ProxyForgotten,
            ("providers", _, true) => Self::of_provider(now, before),
            ("providers", _, false) => Self::ProviderForgotten,
            ("buried", _, true) => Self::DeletionRemembered,
            ("buried", _, false) => Self::DeletionOutdated,
            ("abandoned", _, true) => Self::InstanceGivenUp,
            ("abandoned", _, false) => Self::InstanceForgotten,
            ("leases", _, true) if renewing => Self::LeaseRenewed,
            ("leases", _, true) => Self::LeaseGranted,
            ("leases", _, false) => Self::LeaseCleared,
            _ => return None,
        })
    }

    fn of_provider(now: &Value, before: &Value) -> Self {
        if before.is_null() {
            Self::ProviderTaken
        } else if is_new(now, before, "/metadata/deletionTimestamp") {
            Self::ProviderDeletionAsked
        } else if has_finalizer(now, PROVIDER_FINALIZER) && !has_finalizer(before, PROVIDER_FINALIZER) {
            Self::ProviderFinalizerSet
        } else {
            Self::ProviderStatusStored
        }
    }

    /// The weightiest change that it brings.
    fn of_proxy(now: &Value, before: &Value) -> Self {
        let came = |pointer: &str| is_new(now, before, pointer);
        let went = |pointer: &str| is_new(before, now, pointer);
        let retiring = |object: &Value| object["status"]["retiring"].as_array().map_or(0, Vec::len);
        if before.is_null() {
            Self::ProxyTaken
        } else if came("/metadata/deletionTimestamp") {
            Self::DeletionAsked
        } else if !now["metadata"]["deletionTimestamp"].is_null() {
            Self::DeletionStored
        } else if now["metadata"]["generation"] != before["metadata"]["generation"] {
            Self::SpecTaken
        } else if has_finalizer(now, PROXY_FINALIZER) && !has_finalizer(before, PROXY_FINALIZER) {
            Self::FinalizerSet
        } else if went("/status/next") {
            Self::TakenOver
        } else if retiring(now) < retiring(before) {
            Self::RetiredForgotten
        } else if came("/status/next/placement") {
            Self::NextPlaced
        } else if came("/status/next/providerID") {
            Self::NextStored
        } else if came("/status/instance/placement") {
            Self::PlacementStored
        } else if came("/status/endpoint") {
            Self::EndpointStored
        } else if came("/status/instance/providerID") {
            Self::InstanceStored
        } else {
            Self::StatusStored
        }
    }

    /// What a request to the cloud that may change something does.
    pub fn on_cloud(asked: &Asked) -> Option<Self> {
        let path: Vec<&str> = asked.path.trim_start_matches('/').split('/').collect();
        match (asked.method.as_str(), path.as_slice()) {
            ("PUT", ["v1", "zones", _, "instances", _]) => Some(Self::MachineCreated),
            ("POST", ["v1", "zones", _, "instances", _, "start"]) => Some(Self::MachineStarted),
            ("DELETE", ["v1", "zones", _, "instances", _]) => Some(Self::MachineDeleted),
            _ => None,
        }
    }
}

fn is_new(now: &Value, before: &Value, pointer: &str) -> bool {
    let is_there = |object: &Value| object.pointer(pointer).is_some_and(|value| !value.is_null());
    is_there(now) && !is_there(before)
}
