//! From the bytes of a file to a plugin that can be called: size → digest → contract → compile or cache → `describe`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use wasmtime::component::{HasSelf, Linker};

use super::bindings::{Plugin as Bindings, PluginPre};
use super::call::{CallState, Context, call};
use super::compiler;
use super::contract::{self, ContractError, ContractRefused, PACKAGE, VERSION};
use super::convert::Returned;
use super::engine::{CodeError, CodeRefused, Origin, Runtime};
use super::grants::Grants;
use super::io::wasi;
use super::limits::{DESCRIBE_TIMEOUT, FILE_BYTES, Memory};
use super::log_rate::LogRate;
use crate::model::clock::Clock;
use crate::model::error::CallError;
use crate::model::instance::Description;
use crate::model::metrics::{METRICS, ProviderMetrics};
use crate::model::naming::is_label;
use crate::model::spec_hash::hex;

/// Why a file does not become a plugin. The text says what it is and what to do.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(Refused),
    derive(strum::EnumIter, strum::IntoStaticStr),
    strum(serialize_all = "kebab-case")
)]
#[strum_discriminants(doc = "The kinds of [`LoadError`], as the documentation names them.")]
pub enum LoadError {
    /// Over the size limit.
    #[error("it has {0} bytes, over the limit of {FILE_BYTES}; strip it, or build it for size")]
    TooLarge(u64),
    /// The file's name is no plugin name.
    #[error("its name is no DNS-1123 label; call the file NAME.wasm with at most 63 of a-z, 0-9 and '-'")]
    BadName,
    /// Its digest is on no list.
    #[error("its digest {0} is not among those that --allow-plugin names; add it there, or upload one that is")]
    NotAllowed(String),
    /// Called `.zst`, and is none.
    #[error("it is called .zst and cannot be decompressed ({0}); compress it with zstd, or upload it as it is")]
    NotZstd(String),
    /// It was cut into parts, and some are not there.
    #[error("it was cut into {of} parts, and {} missing; apply all of them", list_parts(.missing))]
    Parts {
        /// How many.
        of: u32,
        /// Which.
        missing: Vec<u32>,
    },
    /// The parts do not make the file that they name.
    #[error("its parts make a file with the digest {found}, not {named}; pack and apply all of them anew")]
    Digest {
        /// Of the file.
        found: String,
        /// In the annotation.
        named: String,
    },
    /// It cannot be had from its registry.
    #[error("{0}")]
    Pull(PullError),
    /// Compiling it would need more memory than there is.
    #[error(
        "compiling its {code_kib} KiB of code would need some {need_mib} MiB, and {budget_mib} MiB are for that; either run `proxy-operator plugin compile` on a machine with this CPU and put what it writes beside the .wasm into --plugin-dir, or raise --compile-memory and the memory limit"
    )]
    Memory {
        /// Code of its core modules.
        code_kib: u64,
        /// What compiling needs.
        need_mib: u64,
        /// What it may need.
        budget_mib: u64,
    },
    /// Not a component of our contract.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The code cannot be made or loaded.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// It does not link.
    #[error(
        "it was built against {PACKAGE}@{guest} and uses what {PACKAGE}@{VERSION}, which this operator serves, has not ({cause}); upgrade the operator, or build it against the contract that `proxy-operator plugin wit` prints"
    )]
    Link {
        /// The file's version.
        guest: String,
        /// What is missing, in wasmtime's words.
        cause: String,
    },
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

/// Why a plugin cannot be had from its registry, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("it cannot be pulled: {0}")]
pub struct PullError(pub String);

impl LoadError {
    /// Its kind, as `docs/providers.md` names it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Contract(error) => ContractRefused::from(error).into(),
            Self::Code(error) => CodeRefused::from(error).into(),
            error => Refused::from(error).into(),
        }
    }

    /// The condition reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull(_) => "PluginPullFailed",
            Self::Parts { .. } => "PluginIncomplete",
            _ => "PluginRefused",
        }
    }
}

fn list_parts(parts: &[u32]) -> String {
    let listed: Vec<_> = parts.iter().map(u32::to_string).collect();
    let are = if parts.len() == 1 { "is" } else { "are" };
    format!("{} {are}", listed.join(", "))
}

/// `sha256:` and the digest of a file.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
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
    pub(super) memory: Memory,
}

/// What the administrator lets in.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Digests (`sha256:…`) of the files that may be loaded; none: all.
    pub allow: Option<BTreeSet<String>>,
    /// Bytes that compiling one plugin may need.
    pub compile_bytes: u64,
    /// Bytes that all calls together may hold.
    pub call_bytes: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { allow: None, compile_bytes: u64::MAX, call_bytes: u64::MAX }
    }
}

/// The one place of a file that is loaded, or being loaded.
type Place = Arc<tokio::sync::Mutex<Weak<Loaded>>>;

/// Loads plugins.
pub struct Loader {
    policy: Policy,
    /// By digest, so that the same bytes are compiled and mapped once, wherever they come from.
    loaded: Mutex<HashMap<String, Place>>,
    runtime: Runtime,
    linker: Linker<CallState>,
    clock: Arc<dyn Clock>,
    nothing: Arc<Grants>,
    /// For `describe`, several at once. Waited for before its time begins: a file that is refused is not looked at again, so it
    /// must not be because others took long.
    describing: Semaphore,
    /// Of the calls of all that it loads.
    memory: Memory,
}

impl Loader {
    /// A loader with all host functions linked.
    ///
    /// # Errors
    /// When the contract in `wit/` and the host functions differ, which a build shows.
    pub fn new(runtime: Runtime, clock: Arc<dyn Clock>) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(runtime.engine());
        Bindings::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut CallState| state)?;
        wasi::link(&mut linker)?;
        let loaded = Mutex::default();
        let policy = Policy::default();
        let describing = Semaphore::new(4);
        let memory = Memory::of(policy.call_bytes);
        Ok(Self { policy, loaded, runtime, linker, clock, nothing: Arc::new(Grants::none()), describing, memory })
    }

    /// The same, under a policy.
    pub fn under(self, policy: Policy) -> Self {
        Self { memory: Memory::of(policy.call_bytes), policy, ..self }
    }

    /// Loads the file `NAME.wasm`.
    ///
    /// # Errors
    /// Whatever is wrong with the file; the operator itself is untouched.
    pub async fn load(self: &Arc<Self>, name: &str, bytes: Vec<u8>) -> Result<Arc<Loaded>, LoadError> {
        let outcome = self.load_file(name, bytes).await;
        METRICS.plugin_loaded(outcome.as_ref().map_or_else(LoadError::label, |_| "ok"));
        outcome
    }

    async fn load_file(self: &Arc<Self>, name: &str, bytes: Vec<u8>) -> Result<Arc<Loaded>, LoadError> {
        if !is_label(name) {
            return Err(LoadError::BadName);
        }
        if bytes.len() > FILE_BYTES {
            return Err(LoadError::TooLarge(bytes.len() as u64));
        }
        let digest = digest_of(&bytes);
        if self.policy.allow.as_ref().is_some_and(|allowed| !allowed.contains(&digest)) {
            return Err(LoadError::NotAllowed(digest));
        }
        let place = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            loaded.retain(|_, place| {
                Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|l| l.strong_count() > 0)
            });
            loaded.entry(digest.clone()).or_default().clone()
        };
        let mut place = place.lock().await;
        let loaded = match place.upgrade() {
            Some(loaded) => loaded,
            None => Arc::new(self.load_anew(name, digest, bytes).await?),
        };
        *place = Arc::downgrade(&loaded);
        if loaded.description.name != name {
            return Err(LoadError::OtherName { described: loaded.description.name.clone() });
        }
        Ok(loaded)
    }

    async fn load_anew(self: &Arc<Self>, name: &str, digest: String, bytes: Vec<u8>) -> Result<Loaded, LoadError> {
        let started = Instant::now();
        let this = self.clone();
        let size = bytes.len();
        let hash = digest.trim_start_matches("sha256:").to_owned();
        let prepared = tokio::task::spawn_blocking(move || this.prepare(&hash, &bytes)).await;
        let (pre, contract, origin) =
            prepared.map_err(|e| CodeError::Compile(contract::foreign(&format!("the compiler panicked: {e}"))))??;
        let context = Context {
            grants: self.nothing.clone(),
            clock: self.clock.clone(),
            provider: "".into(),
            plugin: name.into(),
            timeout: DESCRIBE_TIMEOUT,
            log_rate: Arc::new(Mutex::new(LogRate::new(self.clock.monotonic()))),
            metrics: ProviderMetrics::detached(),
            permits: [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))],
            memory: self.memory.clone(),
        };
        let _turn = self.describing.acquire().await;
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
        let (memory, loading) = (self.memory.clone(), (origin, started.elapsed()));
        Ok(Loaded { description, digest, contract, size, loading, pre, memory })
    }

    fn prepare(&self, digest: &str, bytes: &[u8]) -> Result<(PluginPre<CallState>, String, Origin), LoadError> {
        let checked = contract::check(bytes)?;
        let (component, origin) = match self.runtime.kept(digest) {
            // What is kept was sound when it was compiled, and the digest says that it is the same file.
            Some(component) => (component, Origin::Cache),
            None => {
                contract::validate(&checked.component)?;
                let code = contract::code_bytes(&checked.component);
                let (need, budget) = (compiler::need(code), self.policy.compile_bytes);
                if need > budget {
                    return Err(LoadError::Memory {
                        code_kib: code >> 10,
                        need_mib: need >> 20,
                        budget_mib: budget >> 20,
                    });
                }
                self.runtime.code(digest, &checked.component)?
            }
        };
        let pre = self.linker.instantiate_pre(&component).and_then(PluginPre::new).map_err(|e| LoadError::Link {
            guest: checked.contract.clone(),
            cause: contract::foreign(&format!("{e:#}")),
        })?;
        Ok((pre, checked.contract, origin))
    }
}
