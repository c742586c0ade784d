//! What the operator does outside of itself, by name. A request that may change something and has no name fails the suite.

use proxy_operator::model::{PLUGIN_FINALIZER, PROVIDER_FINALIZER, PROXY_FINALIZER};
use proxy_operator_tests::interceptor::Asked;
use proxy_operator_tests::kube_api::{condition, has_finalizer};
use serde_json::Value;
use strum::VariantArray;

use crate::scenario::Scenario;

/// Something that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Effect {
    /// The cluster is claimed for this installation.
    ClusterClaimed,
    /// The key of derived logins is stored.
    LoginKeyCreated,
    /// A Provider says how it is.
    ProviderStatusShown,
    /// A Provider gets our finalizer.
    ProviderFinalizerSet,
    /// A Provider is let go of.
    ProviderFinalizerRemoved,
    /// A plugin is kept from being deleted.
    PluginHeld,
    /// A plugin is let go of.
    PluginReleased,
    /// Placement, incarnation and the mark of a Proxy are stored.
    PlacementStored,
    /// A Proxy gets our finalizer.
    FinalizerSet,
    /// A machine is made.
    MachineCreated,
    /// What the backend calls the instance is stored.
    InstanceStored,
    /// Where the proxy is reached is stored.
    EndpointStored,
    /// A Proxy says that it is Ready.
    ReadyShown,
    /// A Proxy says something else in its conditions.
    ConditionsShown,
    /// Something is told for the first time.
    EventCreated,
    /// Something is told again.
    EventRepeated,
    /// A login is published.
    LoginPublished,
    /// A published login is replaced.
    LoginReplaced,
    /// The instance to follow gets its placement.
    NextPlaced,
    /// What the backend calls the instance to follow is stored.
    NextStored,
    /// The instance to follow takes over.
    TakenOver,
    /// An instance on its way out is forgotten.
    RetiredForgotten,
    /// A machine that was off is started.
    MachineStarted,
    /// A Proxy under deletion says how far it is.
    DeletionShown,
    /// A machine is deleted.
    MachineDeleted,
    /// A Proxy is let go of.
    FinalizerRemoved,
    /// The list of abandoned instances is made with its first entry.
    AbandonedCreated,
    /// An entry is added to it.
    AbandonedAdded,
    /// The first leader of all makes its Lease.
    LeaseCreated,
    /// A leader takes the Lease of a dead one.
    LeaseTaken,
    /// A leader renews its Lease.
    LeaseRenewed,
    /// A leader that stops gives its Lease back.
    LeaseGivenBack,
}

impl Effect {
    /// In what it is reached.
    pub fn scenario(self) -> Scenario {
        match self {
            Self::ClusterClaimed | Self::LoginKeyCreated => Scenario::FirstStart,
            Self::ProviderStatusShown | Self::ProviderFinalizerSet => Scenario::NewProvider,
            Self::ProviderFinalizerRemoved => Scenario::PartWithProvider,
            Self::PluginHeld => Scenario::UsePlugin,
            Self::PluginReleased => Scenario::LeavePlugin,
            Self::PlacementStored
            | Self::FinalizerSet
            | Self::MachineCreated
            | Self::InstanceStored
            | Self::EndpointStored
            | Self::ReadyShown
            | Self::ConditionsShown
            | Self::EventCreated
            | Self::LoginPublished => Scenario::Create,
            Self::LoginReplaced | Self::NextPlaced | Self::NextStored | Self::TakenOver | Self::RetiredForgotten => {
                Scenario::Rebuild
            }
            Self::EventRepeated | Self::MachineStarted => Scenario::Stopped,
            Self::DeletionShown | Self::MachineDeleted | Self::FinalizerRemoved => Scenario::Delete,
            Self::AbandonedCreated | Self::AbandonedAdded => Scenario::Abandon,
            Self::LeaseCreated => Scenario::FirstElection,
            Self::LeaseTaken => Scenario::Succeed,
            Self::LeaseRenewed => Scenario::Lead,
            Self::LeaseGivenBack => Scenario::Resign,
        }
    }

    /// What a request to the API server that may change something does. `before`: the object as last stored.
    pub fn on_api_server(asked: &Asked, before: &Value) -> Option<Self> {
        let path: Vec<&str> = asked.path.trim_start_matches('/').split('/').collect();
        let name = asked.body["metadata"]["name"].as_str().unwrap_or_default();
        let either = |finalizer, set, removed| Some(if has_finalizer(&asked.body, finalizer) { set } else { removed });
        match (asked.method.as_str(), path.as_slice()) {
            ("PUT", ["apis", "crawl.example.com", _, "namespaces", _, "proxies", _, "status"]) => {
                Some(Self::of_status(&asked.body, &before["status"]))
            }
            ("PATCH", ["apis", "crawl.example.com", _, "namespaces", _, "proxies", _]) => {
                either(PROXY_FINALIZER, Self::FinalizerSet, Self::FinalizerRemoved)
            }
            ("PUT", ["apis", "crawl.example.com", _, "providers", _, "status"]) => Some(Self::ProviderStatusShown),
            ("PATCH", ["apis", "crawl.example.com", _, "providers", _]) => {
                either(PROVIDER_FINALIZER, Self::ProviderFinalizerSet, Self::ProviderFinalizerRemoved)
            }
            ("POST", ["api", "v1", "namespaces", _, "configmaps"]) if name == "proxy-operator-abandoned" => {
                Some(Self::AbandonedCreated)
            }
            ("PATCH", ["api", "v1", "namespaces", _, "configmaps", "proxy-operator-abandoned"]) => {
                Some(Self::AbandonedAdded)
            }
            ("PATCH", ["api", "v1", "namespaces", _, "configmaps", _]) => {
                either(PLUGIN_FINALIZER, Self::PluginHeld, Self::PluginReleased)
            }
            ("POST", ["api", "v1", "namespaces", _, "secrets"]) if name == "proxy-operator-key" => {
                Some(Self::LoginKeyCreated)
            }
            ("POST", ["api", "v1", "namespaces", _, "secrets"]) => Some(Self::LoginPublished),
            ("PUT", ["api", "v1", "namespaces", _, "secrets", _]) => Some(Self::LoginReplaced),
            ("POST", ["apis", "events.k8s.io", "v1", "namespaces", _, "events"]) => Some(Self::EventCreated),
            ("PATCH", ["apis", "events.k8s.io", "v1", "namespaces", _, "events", _]) => Some(Self::EventRepeated),
            ("PATCH", ["apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions", _]) => {
                Some(Self::ClusterClaimed)
            }
            ("POST", ["apis", "coordination.k8s.io", "v1", "namespaces", _, "leases"]) => Some(Self::LeaseCreated),
            ("PUT", ["apis", "coordination.k8s.io", "v1", "namespaces", _, "leases", _]) => {
                let holder = &asked.body["spec"]["holderIdentity"];
                Some(match (holder == "", *holder == before["spec"]["holderIdentity"]) {
                    (true, _) => Self::LeaseGivenBack,
                    (false, true) => Self::LeaseRenewed,
                    (false, false) => Self::LeaseTaken,
                })
            }
            _ => None,
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

    /// The weightiest change that a new status of a Proxy brings.
    fn of_status(proxy: &Value, before: &Value) -> Self {
        let now = &proxy["status"];
        let is_new = |pointer: &str| now.pointer(pointer).is_some() && before.pointer(pointer) != now.pointer(pointer);
        let retiring = |status: &Value| status["retiring"].as_array().map_or(0, Vec::len);
        let next = &before["next"]["incarnation"];
        if !proxy["metadata"]["deletionTimestamp"].is_null() {
            Self::DeletionShown
        } else if !next.is_null() && now["instance"]["incarnation"] == *next {
            Self::TakenOver
        } else if retiring(now) < retiring(before) {
            Self::RetiredForgotten
        } else if is_new("/next/placement") {
            Self::NextPlaced
        } else if is_new("/next/providerID") {
            Self::NextStored
        } else if is_new("/instance/placement") {
            Self::PlacementStored
        } else if is_new("/endpoint") {
            Self::EndpointStored
        } else if is_new("/instance/providerID") {
            Self::InstanceStored
        } else if condition(proxy, "Ready")["status"] == "True" && is_new("/instance/readySince") {
            Self::ReadyShown
        } else {
            Self::ConditionsShown
        }
    }
}
