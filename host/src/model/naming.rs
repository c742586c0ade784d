//! Keys of objects, and how an identity follows from an object.

use std::fmt;

use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::instance::{Identity, Owner};
use super::proxy::{InstanceStatus, Proxy};

/// Namespace and name of a `Proxy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ProxyKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ProxyKey {
    /// The key of an object.
    pub fn of(proxy: &Proxy) -> Self {
        Self { namespace: proxy.namespace().unwrap_or_default(), name: proxy.name_any() }
    }
}

impl fmt::Display for ProxyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What there are manifests of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A `Proxy`.
    Proxy,
    /// A `Provider`.
    Provider,
    /// A `Secret`.
    Secret,
}

impl Kind {
    /// As it is written in front of a name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Provider => "provider",
            Self::Secret => "secret",
        }
    }
}

/// Names an object: its kind, its namespace where it has one, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace: of Proxies only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// The object of a kind; kinds without namespaces pass over the one given.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let namespace = (kind == Kind::Proxy).then(|| namespace.to_owned());
        Self { kind, namespace, name: name.to_owned() }
    }

    /// The key under which such objects are kept.
    pub fn key(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)?;
        match self.namespace.as_deref() {
            None | Some("default") => Ok(()),
            Some(namespace) => write!(f, " in namespace {namespace}"),
        }
    }
}

/// Who the instance of `proxy` is that `instance` speaks of.
pub fn identity(installation: &str, proxy: &Proxy, instance: &InstanceStatus) -> Identity {
    Identity {
        owner: Owner {
            installation: installation.to_owned(),
            proxy_uid: proxy.uid().unwrap_or_default(),
            namespace: proxy.namespace().unwrap_or_default(),
            name: proxy.name_any(),
        },
        incarnation: instance.incarnation,
        attempt: instance.attempt,
        placement: instance.placement.clone().unwrap_or_default(),
        provider_id: instance.provider_id.clone(),
        backend_id: instance.backend_id.clone(),
        continuation: instance.continuation.clone(),
    }
}

/// Whether `name` is a DNS-1123 label: what a Provider, a plugin and a connection are called.
pub fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Whether `name` is a DNS-1123 subdomain: what every other object is called.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_dns_1123() {
        for (name, label, subdomain) in [
            ("kvm-home", true, true),
            ("2", true, true),
            ("a.b", false, true),
            ("", false, false),
            ("-a", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("a..b", false, false),
        ] {
            assert_eq!((is_label(name), is_subdomain(name)), (label, subdomain), "{name:?}");
        }
    }
}
