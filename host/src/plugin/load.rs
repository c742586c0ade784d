//! From the bytes of a file to a plugin that can be called: size → digest → contract → compile or cache → `describe`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use wasmtime::component::{HasSelf, Linker};

use super::bindings::{Plugin as Bindings, PluginPre};
use super::call::{CallState, Context, call};
use super::contract::{self, ContractError};
use super::convert::Returned;
use super::engine::{CodeError, Origin, Runtime};
use super::grants::Grants;
use super::limits::{DESCRIBE_TIMEOUT, FILE_BYTES};
use crate::model::clock::Clock;
use crate::model::error::CallError;
use crate::model::instance::Description;
use crate::model::naming::is_label;
use crate::model::provider::PluginStatus;
use crate::model::spec_hash::hex;

/// Why a file does not become a plugin. The text says what it is and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Over the size limit.
    #[error("it has {0} bytes, over the limit of {FILE_BYTES}; strip it, or build it for size")]
    TooLarge(u64),
    /// The file's name is no plugin name.
    #[error("its name is no DNS-1123 label; call the file NAME.wasm with at most 63 of a-z, 0-9 and '-'")]
    BadName,
    /// Not a component of our contract.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The code cannot be made or loaded.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// It does not link.
    #[error("it does not link: {0}; build it against the contract that `proxy-operator plugin wit` prints")]
    Link(String),
    /// `describe` failed.
    #[error("{0}; mend the plugin's describe, which does no I/O and answers at once")]
    Describe(CallError),
    /// `describe` names another plugin.
    #[error("it calls itself {described:?}; name the file {described}.wasm, or change the plugin's name")]
    OtherName {
        /// What `describe` said.
        described: String,
    },
}

/// A plugin that can be called.
pub struct Loaded {
    /// What it says of itself.
    pub description: Description,
    /// `sha256:` and the digest of the file.
    pub digest: String,
    /// The contract that it was built against.
    pub contract: String,
    /// Bytes of the file.
    pub size: usize,
    /// How its code came to be, and how long it took to load in all.
    pub loading: (Origin, Duration),
    pub(super) pre: PluginPre<CallState>,
}

impl Loaded {
    /// As a Provider's status shows it.
    pub fn status(&self) -> PluginStatus {
        PluginStatus {
            name: self.description.name.clone(),
            version: self.description.version.clone(),
            digest: self.digest.clone(),
            contract: self.contract.clone(),
        }
    }
}

/// Loads plugins.
pub struct Loader {
    runtime: Runtime,
    linker: Linker<CallState>,
    clock: Arc<dyn Clock>,
    nothing: Arc<Grants>,
    permits: [Arc<Semaphore>; 2],
}

impl Loader {
    /// A loader with all host functions linked.
    ///
    /// # Errors
    /// When the contract in `wit/` and the host functions differ, which a build shows.
    pub fn new(runtime: Runtime, clock: Arc<dyn Clock>) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(runtime.engine());
        Bindings::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut CallState| state)?;
        let permits = [Arc::new(Semaphore::new(4)), Arc::new(Semaphore::new(4))];
        Ok(Self { runtime, linker, clock, nothing: Arc::new(Grants::none()), permits })
    }

    /// Loads the file `NAME.wasm`.
    ///
    /// # Errors
    /// Whatever is wrong with the file; the operator itself is untouched.
    pub async fn load(self: &Arc<Self>, name: &str, bytes: Vec<u8>) -> Result<Loaded, LoadError> {
        let started = Instant::now();
        if !is_label(name) {
            return Err(LoadError::BadName);
        }
        if bytes.len() > FILE_BYTES {
            return Err(LoadError::TooLarge(bytes.len() as u64));
        }
        let this = self.clone();
        let size = bytes.len();
        let prepared = tokio::task::spawn_blocking(move || this.prepare(&bytes)).await;
        let (pre, digest, contract, origin) =
            prepared.map_err(|e| CodeError::Compile(format!("the compiler panicked: {e}")))??;
        let context = Context {
            grants: self.nothing.clone(),
            clock: self.clock.clone(),
            provider: "".into(),
            plugin: name.into(),
            timeout: DESCRIBE_TIMEOUT,
            permits: self.permits.clone(),
        };
        let answer = call(
            &pre,
            context,
            "describe",
            vec![],
            Box::new(|store, plugin| {
                Box::pin(async move { plugin.crawl_provider_provider().call_describe(store).await })
            }),
        )
        .await
        .map_err(LoadError::Describe)?;
        let description = Returned(&answer.state).description(answer.value).map_err(LoadError::Describe)?;
        if description.name != name {
            return Err(LoadError::OtherName { described: description.name });
        }
        Ok(Loaded { description, digest, contract, size, loading: (origin, started.elapsed()), pre })
    }

    fn prepare(&self, bytes: &[u8]) -> Result<(PluginPre<CallState>, String, String, Origin), LoadError> {
        let digest = hex(&Sha256::digest(bytes));
        let checked = contract::check(bytes)?;
        let (component, origin) = match self.runtime.kept(&digest) {
            // What is kept was sound when it was compiled, and the digest says that it is the same file.
            Some(component) => (component, Origin::Cache),
            None => {
                contract::validate(&checked.component)?;
                self.runtime.code(&digest, &checked.component)?
            }
        };
        let pre = self
            .linker
            .instantiate_pre(&component)
            .and_then(PluginPre::new)
            .map_err(|e| LoadError::Link(format!("{e:#}")))?;
        Ok((pre, format!("sha256:{digest}"), checked.contract, origin))
    }
}
