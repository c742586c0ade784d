//! The settings of `run`: from flags, the environment, a file, or by default; and `config view`, which says which.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use super::Cli;
use super::client::Failure;
use super::get::document;
use super::run::RunArgs;
use super::tables::table;

/// The flag that names the file, which is not set in it.
const CONFIG: &str = "config";
/// The flag of `config view` that is no setting.
const OUTPUT: &str = "output";

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

/// What the file adds to the command line, and which settings these are.
#[derive(Default)]
pub(super) struct FromFile {
    arguments: Vec<OsString>,
    names: BTreeSet<String>,
    path: PathBuf,
}

impl FromFile {
    /// The command line, with what the file sets and neither a flag nor the environment does.
    ///
    /// # Errors
    /// When the file cannot be read, or sets what there is not.
    pub fn read(given: &[OsString]) -> anyhow::Result<Self> {
        // What is wrong with the command line is told when it is read in earnest.
        let command = Cli::command().ignore_errors(true).mut_subcommands(|below| below.ignore_errors(true));
        let Ok(matches) = command.try_get_matches_from(given) else { return Ok(Self::default()) };
        let below = match matches.subcommand() {
            Some(("run", run)) => Some(run),
            Some((CONFIG, config)) => config.subcommand_matches("view"),
            _ => None,
        };
        let path = below.and_then(|below| Some((below, below.try_get_one::<PathBuf>(CONFIG).ok()??)));
        let Some((below, path)) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
        let mut this = Self { path: path.clone(), ..Self::default() };
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
            self.names.insert(name.clone());
            match (is_switch(arg), words.as_slice()) {
                (true, [word]) if word == "true" => self.arguments.push(format!("--{name}").into()),
                (true, [word]) if word == "false" => {}
                (true, _) => return Err(format!("{name} is true or false")),
                (false, words) => {
                    self.arguments.extend(words.iter().map(|word| OsString::from(format!("--{name}={word}"))));
                }
            }
        }
        Ok(())
    }

    /// The whole command line.
    pub fn added_to(&self, mut given: Vec<OsString>) -> Vec<OsString> {
        given.extend(self.arguments.iter().cloned());
        given
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
    for setting in settings.iter_mut().filter(|setting| file.names.contains(&setting.name)) {
        setting.origin = format!("file {}", file.path.display());
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
