//! `apply`: objects of files, by way of the manifest folder of the operator, which alone writes it.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::client::{Target, command};
use crate::model::manifest::parse;
use crate::rest::local::Outcome;
use crate::store::Applied;

/// Create or change objects, in the operator's manifest folder
#[derive(Args)]
#[command(
    after_help = "Everything is checked before anything is written. An object that has a file already is changed there; a new one gets a\nfile of its own. A Secret is kept with mode 0600.\n\nExamples:\n  proxy-operator apply -f berlin.yaml\n  proxy-operator apply -f fleet/ -f secrets.yaml --data /var/lib/proxy-operator\n  proxy-operator import bought.txt | proxy-operator apply -f -"
)]
pub(super) struct ApplyArgs {
    /// File, folder of *.yaml, *.yml and *.json, or - for standard input; may be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn apply(args: ApplyArgs) -> anyhow::Result<()> {
    let texts = read(&args.files)?;
    for (name, text) in &texts {
        // Here as well, so that the file is named.
        parse(text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    }
    let all: Vec<&str> = texts.iter().map(|(_, text)| text.trim_end()).collect();
    let text = all.join("\n---\n") + "\n";
    let outcomes: Vec<Outcome<Applied>> = command(&args.target.data, "apply", text).await?;
    for Outcome { object, outcome } in outcomes {
        let outcome = match outcome {
            Applied::Created => "created",
            Applied::Configured => "configured",
            Applied::Unchanged => "unchanged",
        };
        println!("{object} {outcome}");
    }
    Ok(())
}

/// The texts of all files, with their names; at least one document is in them.
pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for file in files {
        let name = file.display().to_string();
        if file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            texts.push(("standard input".to_owned(), text));
        } else if file.is_dir() {
            let entries = fs::read_dir(file).with_context(|| name.clone())?;
            let entries = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
            let mut found = entries.with_context(|| name.clone())?;
            found.retain(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json"));
            found.sort();
            anyhow::ensure!(!found.is_empty(), "{name} holds no *.yaml, *.yml or *.json");
            for path in found {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                texts.push((path.display().to_string(), text));
            }
        } else {
            texts.push((name.clone(), fs::read_to_string(file).with_context(|| name)?));
        }
    }
    let empty = texts.iter().all(|(_, text)| text.lines().all(|line| line.trim().is_empty() || line.starts_with('#')));
    let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    anyhow::ensure!(!empty, "{} holds no object", names.join(", "));
    Ok(texts)
}
