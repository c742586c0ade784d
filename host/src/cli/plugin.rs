//! `plugin`: for authors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use clap::Subcommand;

use crate::model::PLUGIN_LABEL;
use crate::model::clock::SystemClock;
use crate::model::naming::is_label;
use crate::plugin::contract;
use crate::plugin::engine::Runtime;
use crate::plugin::load::{LoadError, Loader};

/// The API server refuses more, all keys together.
const CONFIG_MAP_BYTES: usize = (1 << 20) - 4096;

/// Work with plugins
#[derive(Subcommand)]
pub(super) enum PluginCommand {
    /// Make a component of a core module that was built with the contract
    Wrap {
        /// The core module
        core: PathBuf,
        /// The component to write
        #[arg(long, short)]
        output: PathBuf,
    },
    /// Say whether a plugin would load: 0 good, 1 refused
    Check {
        /// NAME.wasm
        file: PathBuf,
    },
    /// Print the ConfigMap that brings a plugin into a cluster
    Pack {
        /// NAME.wasm
        file: PathBuf,
        /// The operator's namespace
        #[arg(long, short, default_value = "proxy-operator")]
        namespace: String,
    },
    /// Print the contract
    Wit,
}

pub(super) async fn run(command: PluginCommand) -> anyhow::Result<u8> {
    match command {
        PluginCommand::Wrap { core, output } => {
            let component = contract::wrap(&read(&core)?).with_context(|| core.display().to_string())?;
            std::fs::write(&output, component).with_context(|| output.display().to_string())?;
            Ok(0)
        }
        PluginCommand::Check { file } => check(&file).await,
        PluginCommand::Pack { file, namespace } => pack(&file, &namespace).map(|()| 0),
        PluginCommand::Wit => {
            print!("{}", include_str!("../../../wit/provider.wit"));
            Ok(0)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// Prints a ConfigMap. Apply it server-side: kubectl's own way would copy all of it into an annotation, which is too small.
fn pack(file: &Path, namespace: &str) -> anyhow::Result<()> {
    let name = file.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    anyhow::ensure!(is_label(name), "{}: {}", file.display(), LoadError::BadName);
    let bytes = read(file)?;
    contract::check(&bytes).with_context(|| file.display().to_string())?;
    anyhow::ensure!(
        bytes.len() <= CONFIG_MAP_BYTES,
        "{} has {} bytes, and a ConfigMap holds {CONFIG_MAP_BYTES}: build it for size, or mount it into --plugin-dir",
        file.display(),
        bytes.len()
    );
    println!("# kubectl apply --server-side -f FILE");
    println!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: plugin-{name}\n  namespace: {namespace}");
    println!("  labels:\n    {PLUGIN_LABEL}: \"true\"");
    println!("binaryData:\n  {name}.wasm: {}", base64::engine::general_purpose::STANDARD.encode(bytes));
    Ok(())
}

async fn check(file: &Path) -> anyhow::Result<u8> {
    let runtime = Runtime::new(None).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let loader =
        Arc::new(Loader::new(runtime, Arc::new(SystemClock::default())).map_err(|e| anyhow::anyhow!("{e:#}"))?);
    let name = file.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    let bytes = read(file)?;
    match loader.load(name, bytes).await {
        Ok(plugin) => {
            let description = &plugin.description;
            println!("{} {}: {}", description.name, description.version, description.summary);
            println!("contract      {}@{}", contract::PACKAGE, plugin.contract);
            println!("digest        {}", plugin.digest);
            println!("size          {} bytes, loaded in {} ms", plugin.size, plugin.loading.1.as_millis());
            for need in &description.connections {
                println!(
                    "connection    {} ({}{}): {}",
                    need.name,
                    need.kind,
                    if need.required { ", required" } else { "" },
                    need.doc
                );
            }
            println!("capabilities  {}", description.capabilities.join(", "));
            Ok(0)
        }
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            Ok(1)
        }
    }
}
