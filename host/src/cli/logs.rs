//! `logs`: the last lines that the operator logged, of all or of one object.

use std::io::Write as _;

use clap::Args;

use super::client::{Failure, Target, read};
use super::named::{Kind, Named, named, not_found};
use super::objects::object;
use crate::model::naming::ProxyKey;
use crate::rest::local::{LogLine, LogPart};
use crate::store::Regarding;

/// Show what the operator logged
#[derive(Args)]
#[command(
    after_help = "The operator remembers its last lines since it started, as many as --log lets through.\n\nExamples:\n  proxy-operator logs --tail 20\n  proxy-operator logs proxy/berlin --follow\n  proxy-operator logs provider demo"
)]
pub(super) struct LogsArgs {
    /// Only about this proxy or provider: KIND NAME or KIND/NAME
    #[arg(value_name = "WHAT", num_args = 0..=2)]
    what: Vec<String>,
    /// Its namespace
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Then print each line that comes, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only so many of the last lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// How it is printed
    #[arg(long, short, default_value = "text", value_parser = ["text", "json"])]
    output: String,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn logs(args: LogsArgs) -> anyhow::Result<()> {
    let object = args.object()?;
    let about = object.as_ref().map(|one| match one.kind {
        Kind::Proxies => {
            Regarding::Proxy(ProxyKey { namespace: args.namespace.clone(), name: one.name.clone() }).to_string()
        }
        _ => Regarding::Provider(one.name.clone()).to_string(),
    });
    let mut part = args.read(0, about.as_deref(), args.tail, false).await?;
    if let (true, Some(one)) = (part.lines.is_empty() && !args.follow, &object) {
        args.is_known(one).await?;
    }
    loop {
        for line in &part.lines {
            // Nobody reads any more.
            if writeln!(std::io::stdout(), "{}", args.shown(line)?).is_err() {
                return Ok(());
            }
        }
        if !args.follow {
            return Ok(());
        }
        part = args.read(part.next, about.as_deref(), None, true).await?;
    }
}

impl LogsArgs {
    fn object(&self) -> anyhow::Result<Option<Named>> {
        if self.what.is_empty() {
            return Ok(None);
        }
        let one: Result<[Named; 1], _> = named(&self.what)?.try_into();
        match one {
            Ok([one]) if matches!(one.kind, Kind::Proxies | Kind::Providers) => Ok(Some(one)),
            _ => Err(Failure::Usage("logs are of one proxy or provider: KIND NAME or KIND/NAME".into()).into()),
        }
    }

    /// Of what is not there nothing is said for another reason than of what is quiet.
    async fn is_known(&self, one: &Named) -> anyhow::Result<()> {
        match object(&self.target, one, &self.namespace).await? {
            Some(_) => {
                eprintln!("nothing was logged about {}/{}", one.kind.singular(), one.name);
                Ok(())
            }
            None => Err(not_found(one, &self.namespace)),
        }
    }

    async fn read(&self, from: u64, about: Option<&str>, tail: Option<usize>, wait: bool) -> anyhow::Result<LogPart> {
        let mut query = url::form_urlencoded::Serializer::new(format!("logs?from={from}&wait={wait}"));
        if let Some(about) = about {
            query.append_pair("about", about);
        }
        if let Some(tail) = tail {
            query.append_pair("tail", &tail.to_string());
        }
        read(&self.target.data, &query.finish()).await
    }

    fn shown(&self, line: &LogLine) -> anyhow::Result<String> {
        Ok(match self.output.as_str() {
            "json" => serde_json::to_string(line)?,
            _ => format!("{:.3} {:>5} {}: {}", line.at, line.level, line.target, line.text),
        })
    }
}
