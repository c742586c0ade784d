//! A plugin with the Provider that it is to serve: what `call` and `test` share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::{name_of, read};
use crate::cli::plugin_args::PROGRAM;
use crate::model::clock::SystemClock;
use crate::model::manifest::{Manifest, SecretManifest};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::plugin::contract;
use crate::plugin::engine::Runtime;
use crate::plugin::load::{LoadError, Loaded, Loader};
use crate::store::local::{SecretFiles, read_file};

/// Which plugin, and what it is granted.
#[derive(Args)]
pub(super) struct BenchArgs {
    /// NAME.wasm
    pub file: PathBuf,
    /// Manifests: the Provider, the Secrets that it names, and perhaps a Proxy; mode 0600 where it holds a Secret
    #[arg(long, value_name = "FILE", required = true)]
    pub provider: Vec<PathBuf>,
    /// Manifest of the Proxy that is asked for [default: a plain one]
    #[arg(long, value_name = "FILE")]
    pub proxy: Option<PathBuf>,
    /// Folder below which `file` references of the Provider may point; may be repeated
    #[arg(long, env = "PROXY_OPERATOR_SECRET_FILES", value_name = "DIR", default_value = "/etc/proxy-operator")]
    pub secret_files: Vec<PathBuf>,
}

/// All of it, read.
pub(super) struct Bench {
    pub plugin: Arc<Loaded>,
    pub imports: Vec<String>,
    pub provider: Provider,
    pub proxy: Option<Proxy>,
    pub secrets: Arc<SecretFiles>,
}

/// A file that is refused.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {cause}")]
pub(super) struct Refused {
    file: String,
    cause: LoadError,
}

/// Loads `NAME.wasm`, without a cache; what `plugin compile` left beside it is taken.
pub(super) async fn load(file: &Path) -> anyhow::Result<Result<Arc<Loaded>, Refused>> {
    let bytes = read(file)?;
    let runtime = Runtime::new(None).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let runtime =
        runtime.with_compiler(PROGRAM.into(), u64::MAX).with_precompiled(file.parent().unwrap_or(Path::new(".")));
    let loader = Loader::new(runtime, Arc::new(SystemClock::default())).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let loaded = Arc::new(loader).load(name_of(file), bytes).await;
    Ok(loaded.map_err(|cause| Refused { file: file.display().to_string(), cause }))
}

impl BenchArgs {
    /// Reads manifests and plugin.
    pub async fn read(&self) -> anyhow::Result<Bench> {
        let (mut providers, mut proxies, mut secrets) = (vec![], vec![], BTreeMap::<String, SecretManifest>::new());
        for path in self.provider.iter().chain(&self.proxy) {
            let manifests = read_file(path).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
            for manifest in manifests {
                match manifest {
                    Manifest::Provider(provider) => providers.push(*provider),
                    Manifest::Proxy(proxy) => proxies.push(*proxy),
                    Manifest::Secret(secret) => drop(secrets.insert(secret.name.clone(), secret)),
                }
            }
        }
        let files: Vec<_> = self.provider.iter().map(|path| path.display().to_string()).collect();
        anyhow::ensure!(
            providers.len() == 1,
            "{} must hold one Provider; there are {}",
            files.join(", "),
            providers.len()
        );
        let provider = providers.remove(0);
        let plugin = load(&self.file).await??;
        let (serves, wanted) = (&plugin.description.name, &provider.spec.plugin.name);
        anyhow::ensure!(
            serves == wanted,
            "the Provider is for the plugin {wanted:?}, and {} is {serves:?}: correct spec.plugin.name",
            self.file.display()
        );
        // With --proxy, that one; else the first beside the Provider.
        let proxy = if self.proxy.is_some() { proxies.pop() } else { proxies.into_iter().next() };
        let held = SecretFiles::new(self.secret_files.clone());
        held.replace(secrets);
        let imports = contract::check(&read(&self.file)?)?.imports;
        Ok(Bench { plugin, imports, provider, proxy, secrets: Arc::new(held) })
    }
}
