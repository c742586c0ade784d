//! The command line: wires everything, decides nothing.

mod abandoned;
mod apply;
mod backup;
mod client;
mod completion;
mod config;
mod delete;
mod demo;
mod describe;
mod doctor;
mod fleet;
mod get;
mod import;
mod leases;
mod logging;
mod logs;
mod named;
mod objects;
mod place;
mod plugin;
mod plugin_args;
mod run;
mod selector;
mod serve;
mod supervisor;
mod tables;
mod terminal;
mod token;
mod top;
mod wait;

use std::path::Path;

use anyhow::Context as _;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::rest::local::Logging;
use crate::store::whole_file;

/// Keeps fleets of forward proxies alive for web crawlers. Backends are WebAssembly components.
#[derive(Parser)]
#[command(name = "proxy-operator", version, about, max_term_width = 120)]
#[command(
    after_help = "Exit status: 0 done; 1 failed, refused or not found; 2 wrong usage; 3 not in time; 4 no operator answers"
)]
struct Cli {
    /// What this command logs to standard error, for example info or proxy_operator=debug,warn
    #[arg(long, global = true, help_heading = GLOBAL, env = "PROXY_OPERATOR_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Log lines as JSON
    #[arg(long, global = true, help_heading = GLOBAL, env = "PROXY_OPERATOR_LOG_JSON")]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator
    Run(Box<run::RunArgs>),
    /// Show the main job on this machine: a sandbox cloud, real proxies, a lease
    Demo(demo::DemoArgs),
    /// Print the CRDs
    #[command(after_help = "Example:\n  proxy-operator crd | kubectl apply --server-side -f -")]
    Crd,
    /// Work with plugins
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Make API tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List objects
    Get(get::GetArgs),
    /// Show an object of a standalone operator with its conditions and events
    Describe(describe::DescribeArgs),
    /// Wait for a condition or a deletion
    Wait(wait::WaitArgs),
    /// Show what happened to a standalone operator's objects
    Events(objects::EventsArgs),
    /// Create or change objects of a standalone operator, in its manifest folder
    Apply(apply::ApplyArgs),
    /// Show who has leased what
    Leases(leases::LeasesArgs),
    /// Show what a standalone operator logged
    Logs(logs::LogsArgs),
    /// Delete objects of a standalone operator, and their manifests
    Delete(delete::DeleteArgs),
    /// Show proxies, their health and their leases, live
    Top(top::TopArgs),
    /// Find what is wrong, and what to do about it
    Doctor(doctor::DoctorArgs),
    /// Copy the state of a running operator into a file
    Backup(backup::BackupArgs),
    /// Look at the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make manifests of a list of proxies that exist already
    Import(import::ImportArgs),
    /// Instances that were given up
    #[command(subcommand)]
    Abandoned(abandoned::AbandonedCommand),
    /// Change what a running operator logs
    Log(objects::LogArgs),
    /// Run a forward proxy
    ForwardProxy(serve::ForwardProxyArgs),
    /// Run a judge for probes
    Judge(serve::JudgeArgs),
    /// Print what a shell needs to complete commands
    Completion(completion::CompletionArgs),
    /// Write man pages
    Man(completion::ManArgs),
    /// Run a small cloud of real proxies, for trying out
    SandboxCloud(serve::SandboxCloudArgs),
}

impl Cli {
    /// What is logged.
    fn filter(&self) -> &str {
        // The demo speaks for itself.
        let quiet = matches!(self.command, Command::Demo(_));
        self.log.as_deref().unwrap_or(if quiet { "off" } else { "info,notify=warn" })
    }
}

/// Above the flags that stand with every command.
const GLOBAL: &str = "Global options";
/// Commands, and those of `plugin`, that log nothing: the flags of logging are taken there, and not shown.
const SILENT: [&str; 18] = [
    "abandoned",
    "apply",
    "backup",
    "completion",
    "crd",
    "delete",
    "describe",
    "doctor",
    "events",
    "get",
    "import",
    "leases",
    "log",
    "logs",
    "man",
    "token",
    "top",
    "wait",
];
const SILENT_OF_PLUGIN: [&str; 6] = ["cases", "compile", "new", "pack", "wit", "wrap"];

/// All commands with their flags.
fn command() -> clap::Command {
    let silent = |command: clap::Command| {
        // Of the same names, so that those of all commands are not added.
        let log = Arg::new("log").long("log").value_name("FILTER").global(true).hide(true);
        let json = Arg::new("log_json").long("log-json").action(ArgAction::SetTrue).global(true).hide(true);
        command.args([log, json])
    };
    let mut all = Cli::command();
    for name in SILENT {
        all = all.mut_subcommand(name, silent);
    }
    all.mut_subcommand("plugin", |plugin| {
        SILENT_OF_PLUGIN.iter().fold(plugin, |all, name| all.mut_subcommand(name, silent))
    })
}

/// Runs the command that the arguments name; answers the exit status.
pub fn main() -> std::process::ExitCode {
    let file = match config::FromFile::read(std::env::args_os().collect()) {
        Ok(file) => file,
        Err(error) => return failed(&error).into(),
    };
    let cli =
        Cli::from_arg_matches(&command().get_matches_from(file.command_line())).unwrap_or_else(|error| error.exit());
    let logging = logging::init(cli.filter(), cli.log_json);
    // One TLS implementation for all; a second call would only say that there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return 1.into();
        }
    };
    let outcome = runtime.block_on(dispatch(cli.command, logging, &file));
    // A blocking task (a compile, a slow disk) does not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match outcome {
        Ok(status) => status.into(),
        Err(error) => failed(&error).into(),
    }
}

/// Tells of an error; answers the exit status.
fn failed(error: &anyhow::Error) -> u8 {
    eprintln!("error: {error:#}");
    error.downcast_ref::<client::Failure>().map_or(1, client::Failure::status)
}

async fn dispatch(command: Command, logging: Logging, file: &config::FromFile) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(*args, logging, file.clone()).await.map(|()| 0),
        Command::Demo(args) => demo::demo(args, logging).await.map(|()| 0),
        Command::Crd => {
            for crd in crate::model::manifest::crds() {
                println!("---\n{}", serde_saphyr::to_string(&crd)?.trim_end());
            }
            Ok(0)
        }
        Command::Plugin(command) => plugin::run(command).await,
        Command::Token(command) => token::run(command).map(|()| 0),
        Command::Get(args) => get::get(args).await.map(|()| 0),
        Command::Describe(args) => describe::describe(args).await.map(|()| 0),
        Command::Wait(args) => wait::wait(args).await.map(|()| 0),
        Command::Events(args) => objects::events(args).await.map(|()| 0),
        Command::Leases(args) => leases::leases(args).await.map(|()| 0),
        Command::Logs(args) => logs::logs(args).await.map(|()| 0),
        Command::Top(args) => top::top(args).await.map(|()| 0),
        Command::Doctor(args) => doctor::doctor(args).await,
        Command::Backup(args) => backup::backup(args).await.map(|()| 0),
        Command::Config(command) => config::run(command, file).map(|()| 0),
        Command::Completion(args) => completion::completion(&args).map(|()| 0),
        Command::Man(args) => completion::man(&args).map(|()| 0),
        Command::Apply(args) => apply::apply(args).await.map(|()| 0),
        Command::Delete(args) => delete::delete(args).await.map(|()| 0),
        Command::Import(args) => import::import(args).map(|()| 0),
        Command::Abandoned(command) => abandoned::run(command).await.map(|()| 0),
        Command::Log(args) => objects::log(args).await.map(|()| 0),
        Command::ForwardProxy(args) => serve::forward_proxy(args).await.map(|()| 0),
        Command::Judge(args) => serve::judge(args).await.map(|()| 0),
        Command::SandboxCloud(args) => serve::sandbox_cloud(args).await.map(|()| 0),
    }
}

/// Writes a file whole or not at all.
fn write_whole(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    whole_file::write(path, mode, text).with_context(|| path.display().to_string())
}

/// Ends on SIGTERM or Ctrl-C.
async fn told_to_stop() {
    let mut term = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(term) => term,
        Err(_) => return std::future::pending().await,
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
