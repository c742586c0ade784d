//! `plugin`: for authors.

mod bench;
mod call;
mod check;
mod compile;
mod create;
mod pack;
mod show;
mod test;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;

use crate::plugin::compiler;
use crate::plugin::contract;

/// Exit status of a command that cannot run as it was asked.
const USAGE: u8 = 2;

/// Work with plugins
#[derive(Subcommand)]
pub(super) enum PluginCommand {
    /// Write a new plugin in Rust: a crate of its own that builds and passes the kit
    #[command(after_help = "Example:\n  proxy-operator plugin new rental && cd rental && ./build.sh")]
    New {
        /// Folder to write, which does not exist yet or is empty; its last part is the plugin's name
        dir: PathBuf,
    },
    /// Say whether a plugin would load, and what it costs: 0 good, 1 refused, 2 not run
    #[command(
        after_help = "Examples:\n  proxy-operator plugin check rental.wasm\n  proxy-operator --log off plugin check bin/plugins/sandbox.wasm"
    )]
    Check {
        /// NAME.wasm
        file: PathBuf,
    },
    /// Call one function of a plugin: 0 answered, 1 an error, 2 not run
    Call(Box<call::CallArgs>),
    /// Run the conformance kit: 0 passed, 1 a rule is broken, 2 not run
    Test(Box<test::TestArgs>),
    /// Print the kit's cases with their rules
    #[command(after_help = "Example:\n  proxy-operator plugin cases")]
    Cases,
    /// Print the ConfigMaps that bring a plugin into a cluster: one where it fits, compressed and cut otherwise
    #[command(
        after_help = "Examples:\n  proxy-operator plugin pack rental.wasm | kubectl apply --server-side -f -\n  proxy-operator plugin pack rental.wasm -o packed"
    )]
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
    #[command(
        after_help = "Example:\n  proxy-operator plugin compile lines.wasm -o /usr/local/lib/proxy-operator/plugins"
    )]
    Compile {
        /// NAME.wasm
        file: PathBuf,
        /// The folder to write to: the one that --plugin-dir names, beside the .wasm
        #[arg(long, short, value_name = "DIR")]
        output: PathBuf,
    },
    /// Compile standard input to standard output, for the operator
    #[command(hide = true)]
    CompileHere(compiler::Limits),
    /// Make a component of a core module that was built with the contract; a component stays as it is
    #[command(
        after_help = "Example:\n  proxy-operator plugin wrap target/wasm32-unknown-unknown/release/provider_rental.wasm -o rental.wasm"
    )]
    Wrap {
        /// The core module
        core: PathBuf,
        /// The component to write
        #[arg(long, short)]
        output: PathBuf,
    },
    /// Print the contract
    #[command(after_help = "Example:\n  proxy-operator plugin wit > wit/provider.wit")]
    Wit,
}

pub(super) async fn run(command: PluginCommand) -> anyhow::Result<u8> {
    match command {
        PluginCommand::New { dir } => usage(create::new(&dir).map(|()| 0)),
        PluginCommand::Check { file } => usage(check::check(&file).await),
        PluginCommand::Call(args) => usage(call::call(*args).await),
        PluginCommand::Test(args) => usage(test::test(*args).await),
        PluginCommand::Cases => {
            test::list();
            Ok(0)
        }
        PluginCommand::Pack { file, namespace, output } => pack::pack(&file, &namespace, output.as_deref()).map(|()| 0),
        PluginCommand::Compile { file, output } => compile::compile(&file, &output).map(|()| 0),
        PluginCommand::CompileHere(limits) => compiler::compile_here(limits).map(|()| 0).map_err(Into::into),
        PluginCommand::Wrap { core, output } => {
            let bytes = read(&core)?;
            let component = contract::component(&bytes).with_context(|| core.display().to_string())?;
            std::fs::write(&output, &component).with_context(|| output.display().to_string())?;
            Ok(0)
        }
        PluginCommand::Wit => {
            print!("{}", create::WIT);
            Ok(0)
        }
    }
}

/// These commands answer 1 for what they found: an error of theirs is told apart.
fn usage(outcome: anyhow::Result<u8>) -> anyhow::Result<u8> {
    outcome.or_else(|error| {
        eprintln!("error: {error:#}");
        Ok(USAGE)
    })
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// The plugin's name: the file's without its ending.
fn name_of(file: &Path) -> &str {
    file.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}
