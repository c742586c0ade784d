//! `plugin`: for authors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Subcommand;

use crate::model::clock::SystemClock;
use crate::plugin::contract;
use crate::plugin::engine::Runtime;
use crate::plugin::load::Loader;

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
        PluginCommand::Wit => {
            print!("{}", include_str!("../../../wit/provider.wit"));
            Ok(0)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
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
