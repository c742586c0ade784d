//! `plugin`: for authors.

mod pack;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Subcommand;

use crate::model::clock::SystemClock;
use crate::plugin::contract;
use crate::plugin::engine::Runtime;
use crate::plugin::load::{Loader, digest_of};

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
    /// Print the ConfigMaps that bring a plugin into a cluster: one where it fits, compressed and cut otherwise
    Pack {
        /// NAME.wasm
        file: PathBuf,
        /// The operator's namespace
        #[arg(long, short, default_value = "proxy-operator")]
        namespace: String,
        /// Write each ConfigMap into a file of this folder
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
    /// Compile a plugin for this CPU and this operator's engine, for the plugin folder of an operator with little memory
    Compile {
        /// NAME.wasm
        file: PathBuf,
        /// The folder to write to: the one that --plugin-dir names, beside the .wasm
        #[arg(long, short, value_name = "DIR")]
        output: PathBuf,
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
        PluginCommand::Pack { file, namespace, output } => pack::pack(&file, &namespace, output.as_deref()).map(|()| 0),
        PluginCommand::Compile { file, output } => compile(&file, &output).map(|()| 0),
        PluginCommand::Wit => {
            print!("{}", include_str!("../../../wit/provider.wit"));
            Ok(0)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// Writes code as the cache keeps it, named by the digest of the file and by engine and CPU.
fn compile(file: &Path, output: &Path) -> anyhow::Result<()> {
    let bytes = read(file)?;
    let checked = contract::check(&bytes).with_context(|| file.display().to_string())?;
    contract::validate(&checked.component).with_context(|| file.display().to_string())?;
    let runtime = Runtime::new(Some(output.to_owned())).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let digest = digest_of(&bytes);
    let hash = digest.trim_start_matches("sha256:");
    runtime.code(hash, &checked.component).with_context(|| file.display().to_string())?;
    let code = output.join(runtime.file(hash));
    let size = std::fs::metadata(&code).with_context(|| code.display().to_string())?.len();
    println!("{}: {size} bytes, for {digest}", code.display());
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
