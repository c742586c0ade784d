//! Building records with what most plugins leave at its default.

use crate::{ConnectionNeed, Description, Finding, Instance, Page, State};

/// Accepts an empty object only: for a plugin without settings.
const NO_SETTINGS: &str = r#"{"type":"object","additionalProperties":false}"#;

impl Description {
    /// A plugin without settings, connections and capabilities; add what it has with the methods below.
    pub fn new(name: &str, version: &str, summary: &str) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            summary: summary.into(),
            config_schema: NO_SETTINGS.into(),
            parameters_schema: NO_SETTINGS.into(),
            connections: vec![],
            connection_pointers: vec![],
            capabilities: vec![],
            extra: vec![],
        }
    }

    /// JSON Schemas (2020-12) of `Provider.spec.config` and `Proxy.spec.parameters`.
    pub fn schemas(mut self, config: &str, parameters: &str) -> Self {
        self.config_schema = config.into();
        self.parameters_schema = parameters.into();
        self
    }

    /// Asks for a connection of kind `ssh` or `http`; without it the plugin is refused.
    pub fn needs(mut self, name: &str, kind: &str, doc: &str) -> Self {
        self.connections.push(ConnectionNeed { name: name.into(), kind: kind.into(), required: true, doc: doc.into() });
        self
    }

    /// Declares a capability, see `docs/providers.md`.
    pub fn capability(mut self, name: &str) -> Self {
        self.capabilities.push(name.into());
        self
    }
}

impl Instance {
    /// An instance of which only this is known.
    pub fn new(provider_id: impl Into<String>, placement: impl Into<String>, state: State) -> Self {
        Self {
            provider_id: provider_id.into(),
            backend_id: None,
            placement: placement.into(),
            state,
            addresses: vec![],
            port: None,
            owner: None,
            incarnation: None,
            spec_hash: None,
            created_at: None,
            message: None,
            login_secret: None,
            poll_after_ms: None,
            continuation: None,
            extra: vec![],
        }
    }
}

impl Page {
    /// The last page, with nothing on it.
    pub fn empty() -> Self {
        Self { instances: vec![], next: None }
    }
}

impl Finding {
    /// A target that can take creates.
    pub fn ok(target: impl Into<String>, message: impl Into<String>) -> Self {
        Self { target: target.into(), healthy: true, reason: "Ok".into(), message: message.into() }
    }

    /// A target that cannot, and why.
    pub fn bad(target: impl Into<String>, reason: &str, message: impl Into<String>) -> Self {
        Self { target: target.into(), healthy: false, reason: reason.into(), message: message.into() }
    }
}
