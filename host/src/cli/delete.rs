//! `delete`: objects and their manifests.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use serde_json::Value;
use tokio::time::Instant;

use super::apply;
use super::client::{Failure, Target, command, read};
use super::named::{Kind, Named, named, not_found, nothing_named};
use super::objects::object;
use crate::model::manifest::references;
use crate::model::naming::{self, ObjectRef};
use crate::model::span::Span;
use crate::rest::local::{Deletion, Outcome};

/// Between two looks.
const POLL: Duration = Duration::from_millis(200);

/// Delete objects, and their manifests
#[derive(Args)]
#[command(
    after_help = "The document goes from the operator's manifest folder, too, so that nothing comes back. Secrets of -f go last, when\nwhat may need them is gone.\n\nExamples:\n  proxy-operator delete proxy berlin lisbon\n  proxy-operator delete px/berlin --wait=false\n  proxy-operator delete -f fleet.yaml --timeout 5m"
)]
pub(super) struct DeleteArgs {
    /// KIND NAME… or KIND/NAME…; kinds are proxies (px), providers (pxp) and secrets
    #[arg(required_unless_present = "files", conflicts_with = "files", value_name = "WHAT")]
    what: Vec<String>,
    /// What this file, this folder or standard input (-) names; may be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Its namespace
    #[arg(long, short, default_value = "default", conflicts_with = "files")]
    namespace: String,
    /// Whether to wait until they are gone
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    wait: bool,
    /// For how long; after it the deletion goes on
    #[arg(long, value_name = "TIME", default_value = "15m")]
    timeout: Span,
    /// What is not there counts as deleted
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let objects = if args.files.is_empty() { args.named()? } else { args.of_files()? };
    let until = Instant::now() + args.timeout.duration();
    let (secrets, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(|one| one.kind == naming::Kind::Secret);
    let mut errors = Vec::new();
    if !others.is_empty() {
        let uids = if args.wait { args.uids().await? } else { HashMap::new() };
        let accepted = args.ask(others, &mut errors).await?;
        if args.wait {
            for one in &accepted {
                args.wait_gone(one, uids.get(one), until).await?;
            }
        } else if !secrets.is_empty() {
            let names: Vec<String> = secrets.iter().map(ToString::to_string).collect();
            eprintln!("{} stays: what is being deleted may need it; delete it when that is gone", names.join(", "));
            return finish(errors);
        }
    }
    if !secrets.is_empty() {
        args.ask(secrets, &mut errors).await?;
    }
    finish(errors)
}

fn finish(errors: Vec<String>) -> anyhow::Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(anyhow::anyhow!(errors.join("\nerror: "))) }
}

/// As the commands name it.
fn as_named(object: &ObjectRef) -> Named {
    Named { kind: object.kind.into(), name: object.name.clone() }
}

impl DeleteArgs {
    fn named(&self) -> anyhow::Result<Vec<ObjectRef>> {
        let names = named(&self.what)?;
        if names.is_empty() {
            return Err(nothing_named("to be deleted"));
        }
        // Events have no names.
        let reference = |one: &Named| Some(ObjectRef::new(one.kind.of_manifests()?, &self.namespace, &one.name));
        Ok(names.iter().filter_map(reference).collect())
    }

    fn of_files(&self) -> anyhow::Result<Vec<ObjectRef>> {
        let mut objects = Vec::new();
        for (name, text) in apply::read(&self.files)? {
            objects.extend(references(&text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?);
        }
        Ok(objects)
    }

    /// Which objects there are: one that comes back under the same name is another.
    async fn uids(&self) -> anyhow::Result<HashMap<ObjectRef, String>> {
        let mut uids = HashMap::new();
        for kind in [naming::Kind::Proxy, naming::Kind::Provider] {
            for one in read::<Vec<Value>>(&self.target.data, Kind::from(kind).plural()).await? {
                let at = |pointer| one.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let object = ObjectRef::new(kind, at("/metadata/namespace"), at("/metadata/name"));
                uids.insert(object, at("/metadata/uid").to_owned());
            }
        }
        Ok(uids)
    }

    /// Asks for the deletions; answers those that are under way.
    async fn ask(&self, objects: Vec<ObjectRef>, errors: &mut Vec<String>) -> anyhow::Result<Vec<ObjectRef>> {
        let mut accepted = Vec::new();
        let asked = serde_json::to_string(&objects)?;
        for Outcome { object, outcome } in command::<Vec<Outcome<Deletion>>>(&self.target.data, "delete", asked).await?
        {
            match outcome {
                Deletion::Accepted(note) => {
                    let done = if object.kind == naming::Kind::Secret { "is gone" } else { "is being deleted" };
                    println!("{object} {done}");
                    note.iter().for_each(|note| eprintln!("{object}: {note}"));
                    accepted.push(object);
                }
                Deletion::NotFound if self.ignore_not_found => {}
                Deletion::NotFound => {
                    let namespace = object.namespace.as_deref().unwrap_or_default();
                    errors.push(not_found(&as_named(&object), namespace).to_string());
                }
                Deletion::Failed(why) => errors.push(why),
            }
        }
        Ok(accepted)
    }

    async fn wait_gone(&self, one: &ObjectRef, uid: Option<&String>, until: Instant) -> anyhow::Result<()> {
        let name = as_named(one);
        loop {
            let found = object(&self.target, &name, one.namespace.as_deref().unwrap_or_default()).await?;
            let now = found.as_ref().and_then(|object| object.pointer("/metadata/uid")).and_then(Value::as_str);
            if now.is_none() || now != uid.map(String::as_str) {
                println!("{one} is gone");
                return Ok(());
            }
            if Instant::now() >= until {
                let help = format!("`proxy-operator describe {}/{}` says why", one.kind.word(), one.name);
                return Err(Failure::Timeout(format!(
                    "{one}: not in time: it is still there, and its deletion goes on; {help}"
                ))
                .into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
