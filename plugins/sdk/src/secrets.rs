//! Secrets that `Provider.spec.secrets` grants.

use crate::bindings::crawl::provider::secrets as host;
use crate::{Error, FaultKind};

/// The value of a granted secret.
pub fn get(name: &str) -> Result<Vec<u8>, Error> {
    host::get(name).map_err(|fault| match fault.kind {
        FaultKind::UnknownConnection => {
            Error::config_missing(format!("secret {name} is not granted; add it under the Provider's spec.secrets"))
                .reason("SecretNotGranted")
        }
        FaultKind::NotConfigured | FaultKind::Credential => {
            Error::config_missing(format!("secret {name} is granted and cannot be read: {}", fault.message))
                .reason("SecretMissing")
        }
        _ => Error::from_fault(&fault, false),
    })
}

/// Whether a secret is granted and readable; its value is dropped unread.
pub fn granted(name: &str) -> Result<(), Error> {
    get(name).map(drop)
}
