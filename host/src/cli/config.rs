//! The settings of `run`: from flags, the environment, a file, or by default; and `config view`, which says which.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser as _, Subcommand};
use serde_json::{Map, Value, json};

use super::Cli;
use super::client::Failure;
use super::get::document;
use super::run::RunArgs;
use super::tables::table;
use crate::rest::local::Logging;

/// The flag that names the file, which is not set in it.
const CONFIG: &str = "config";
/// The flag of `config view` that is no setting.
const OUTPUT: &str = "output";
/// The setting that changes while the operator runs.
const LOG: &str = "log";

/// Look at the configuration
#[derive(Subcommand)]
pub(super) enum ConfigCommand {
    /// Show each setting of `run`, and where it comes from
    #[command(
        after_help = "Flags go before the environment, the environment before the file. The file holds the flags of `run` by name:\n\n  standalone: true\n  manifests: /etc/proxy-operator/manifests\n  data: /var/lib/proxy-operator\n  log: info\n\nExamples:\n  proxy-operator config view --config /etc/proxy-operator/config.yaml\n  proxy-operator config view --rest-addr 127.0.0.1:8080 -o json"
    )]
    View(ViewArgs),
}

/// Where a setting comes from.
struct Setting {
    name: String,
    value: Option<String>,
    origin: String,
}

/// The settings as `run` would have them; nothing is demanded.
pub(super) struct ViewArgs {
    settings: Vec<Setting>,
    output: String,
}

impl Args for ViewArgs {
    fn augment_args(command: Command) -> Command {
        let output = Arg::new(OUTPUT)
            .long("output")
            .short('o')
            .default_value("table")
            .value_parser(["table", "yaml", "json"])
            .help("How it is printed");
        RunArgs::augment_args(command).mut_args(|arg| arg.required(false)).arg(output)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ViewArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (run, all) = (RunArgs::augment_args(Command::new("run")), Cli::command());
        let settings = run.get_arguments().chain(all.get_arguments()).filter(|arg| is_setting(arg));
        Ok(Self {
            settings: settings.filter_map(|arg| setting(arg, matches)).collect(),
            output: matches.get_one::<String>(OUTPUT).cloned().unwrap_or_default(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| !["help", "version", CONFIG].contains(&long))
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn setting(arg: &Arg, matches: &ArgMatches) -> Option<Setting> {
    let id = arg.get_id().as_str();
    let raw = matches.try_get_raw(id).ok()?;
    let values: Vec<String> = raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
    let origin = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => "flag".to_owned(),
        Some(ValueSource::EnvVariable) => {
            format!("environment {}", arg.get_env().unwrap_or_default().to_string_lossy())
        }
        Some(_) => "default".to_owned(),
        None => "not set".to_owned(),
    };
    Some(Setting { name: arg.get_long()?.to_owned(), value: (!values.is_empty()).then(|| values.join(",")), origin })
}

/// The command line, and what the file adds to it.
#[derive(Clone)]
pub(super) struct FromFile {
    given: Vec<OsString>,
    /// Arguments by the setting that they are of.
    added: BTreeMap<String, Vec<OsString>>,
    path: Option<PathBuf>,
}

impl FromFile {
    /// What the file sets and neither a flag nor the environment does.
    ///
    /// # Errors
    /// When the file cannot be read, or sets what there is not.
    pub fn read(given: Vec<OsString>) -> anyhow::Result<Self> {
        let mut this = Self { given, added: BTreeMap::new(), path: None };
        // What is wrong with the command line is told when it is read in earnest.
        let command = Cli::command().ignore_errors(true).mut_subcommands(|below| below.ignore_errors(true));
        let Ok(matches) = command.try_get_matches_from(&this.given) else { return Ok(this) };
        let below = match matches.subcommand() {
            Some(("run", run)) => Some(run),
            Some((CONFIG, config)) => config.subcommand_matches("view"),
            _ => None,
        };
        let path = below.and_then(|below| Some((below, below.try_get_one::<PathBuf>(CONFIG).ok()??)));
        let Some((below, path)) = path else { return Ok(this) };
        let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
        this.path = Some(path.clone());
        this.take(&text, below).map_err(|why| Failure::Usage(format!("--config {}: {why}", path.display())))?;
        Ok(this)
    }

    fn take(&mut self, text: &str, given: &ArgMatches) -> Result<(), String> {
        let file: Value = serde_saphyr::from_str(text).map_err(|e| format!("not valid YAML: {e}"))?;
        let settings = match file {
            Value::Null => Map::new(),
            Value::Object(settings) => settings,
            _ => return Err("it holds no `NAME: VALUE` lines".into()),
        };
        let run = RunArgs::augment_args(Command::new("run"));
        let all = Cli::command();
        let known: Vec<&Arg> = run.get_arguments().chain(all.get_arguments()).filter(|arg| is_setting(arg)).collect();
        for (name, value) in &settings {
            let arg = known.iter().find(|arg| arg.get_long() == Some(name)).ok_or_else(|| {
                let names: Vec<_> = known.iter().filter_map(|arg| arg.get_long()).collect();
                format!("there is no setting {name:?}; there are: {}", names.join(", "))
            })?;
            let words = words(name, value)?;
            if matches!(
                given.value_source(arg.get_id().as_str()),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            ) {
                continue;
            }
            let added = match (is_switch(arg), words.as_slice()) {
                (true, [word]) if word == "true" => vec![format!("--{name}").into()],
                (true, [word]) if word == "false" => vec![],
                (true, _) => return Err(format!("{name} is true or false")),
                (false, words) => words.iter().map(|word| OsString::from(format!("--{name}={word}"))).collect(),
            };
            self.added.insert(name.clone(), added);
        }
        Ok(())
    }

    /// The whole command line.
    pub fn command_line(&self) -> impl Iterator<Item = &OsString> {
        self.given.iter().chain(self.added.values().flatten())
    }

    /// Reads the file again: what is logged changes at once, and what needs a new start is told.
    ///
    /// # Errors
    /// When the file cannot be read or is wrong; then nothing changes.
    pub fn reload(&mut self, logging: &Logging) -> anyhow::Result<()> {
        let Some(path) = self.path.clone() else {
            anyhow::bail!(
                "there is no --config to read again; manifests, plugins, tokens and Secrets are followed anyway"
            );
        };
        let next = Self::read(self.given.clone())?;
        // As a start would take it.
        let cli = Cli::try_parse_from(next.command_line()).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
        let names = self.added.keys().chain(next.added.keys()).collect::<BTreeSet<_>>();
        let changed: Vec<&str> = names
            .into_iter()
            .filter(|name| self.added.get(*name) != next.added.get(*name))
            .map(String::as_str)
            .collect();
        if changed.contains(&LOG) {
            (logging.set)(cli.filter()).map_err(anyhow::Error::msg)?;
        }
        let later: Vec<&str> = changed.into_iter().filter(|name| *name != LOG).collect();
        if later.is_empty() {
            tracing::info!(file = %path.display(), "settings were read again");
        } else {
            let settings = later.join(", ");
            tracing::warn!(file = %path.display(), settings, "settings were read again; these wait for the next start");
        }
        // The others are still as they were at the start.
        match next.added.get(LOG) {
            Some(log) => drop(self.added.insert(LOG.to_owned(), log.clone())),
            None => drop(self.added.remove(LOG)),
        }
        Ok(())
    }
}

/// A value as words of a command line.
fn words(name: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Bool(_) | Value::Number(_) => Ok(vec![value.to_string()]),
        Value::Array(all) => Ok(all.iter().map(|one| words(name, one)).collect::<Result<Vec<_>, _>>()?.concat()),
        Value::Null | Value::Object(_) => Err(format!("{name} is a text, a number, true or false, or a list of these")),
    }
}

pub(super) fn run(command: ConfigCommand, file: &FromFile) -> anyhow::Result<()> {
    let ConfigCommand::View(ViewArgs { mut settings, output }) = command;
    settings.sort_by(|a, b| a.name.cmp(&b.name));
    let path = file.path.as_deref().unwrap_or(Path::new("")).display();
    for setting in settings.iter_mut().filter(|setting| file.added.contains_key(&setting.name)) {
        setting.origin = format!("file {path}");
    }
    if output == "table" {
        let mut table = table(&["SETTING", "VALUE", "ORIGIN"]);
        for Setting { name, value, origin } in settings {
            table.add_row([name, value.unwrap_or_default(), origin]);
        }
        println!("{table}");
        return Ok(());
    }
    let entry = |setting: Setting| (setting.name, json!({"value": setting.value, "origin": setting.origin}));
    document(&output, &settings.into_iter().map(entry).collect::<Map<_, _>>())
}
