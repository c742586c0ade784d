//! `top`: how the fleet is, drawn anew as it changes.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::client::{Failure, Target, ask, expect, read};
use super::tables::{age, ready, table, text};
use super::terminal::{Screen, coloured};
use crate::model::span::Span;
use crate::rest::local::ShownLease;

/// Show proxies, their health and their leases, live
#[derive(Args)]
#[command(
    after_help = "On a terminal it is drawn anew until Ctrl-C; elsewhere it is printed once. Proxies that are not ready come first.\n\nExamples:\n  proxy-operator top\n  proxy-operator top --interval 1s -n crawl\n  proxy-operator top --once > fleet.txt"
)]
pub(super) struct TopArgs {
    /// Between two looks
    #[arg(long, value_name = "TIME", default_value = "2s")]
    interval: Span,
    /// Only proxies of this namespace
    #[arg(long, short)]
    namespace: Option<String>,
    /// Print it once
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: Target,
}

/// What is shown.
struct Fleet {
    proxies: Vec<Value>,
    providers: Vec<Value>,
    leases: Vec<ShownLease>,
}

impl TopArgs {
    async fn look(&self) -> anyhow::Result<Fleet> {
        let data = &self.target.data;
        let (mut proxies, mut providers): (Vec<Value>, Vec<Value>) =
            (read(data, "proxies").await?, read(data, "providers").await?);
        proxies.retain(|proxy| self.namespace.as_ref().is_none_or(|of| text(proxy, "/metadata/namespace") == *of));
        proxies
            .sort_by_key(|proxy| (is_ready(proxy), text(proxy, "/metadata/namespace"), text(proxy, "/metadata/name")));
        providers.sort_by_key(|provider| text(provider, "/metadata/name"));
        // One that stands by lends nothing.
        let (status, answer) = ask(data, Method::GET, "leases").await?;
        let mut leases: Vec<ShownLease> = match status {
            StatusCode::SERVICE_UNAVAILABLE => vec![],
            status => {
                expect(status, StatusCode::OK, &answer)?;
                serde_json::from_value(answer)?
            }
        };
        leases.retain(|lease| self.namespace.as_ref().is_none_or(|of| lease.proxy.namespace == *of));
        Ok(Fleet { proxies, providers, leases })
    }
}

pub(super) async fn top(args: TopArgs) -> anyhow::Result<()> {
    let mut fleet = args.look().await?;
    if args.once || !std::io::stdout().is_terminal() {
        let lines = fleet.lines(Timestamp::now());
        // Nobody reads any more.
        let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
        return Ok(());
    }
    let screen = Screen::enter()?;
    let interval = args.interval.duration().max(Duration::from_millis(200));
    let mut trouble = None;
    loop {
        let now = Timestamp::now();
        let note = trouble.take().unwrap_or_else(|| format!("{now:.0}, every {}; Ctrl-C ends", args.interval));
        let mut lines = vec![format!("proxy-operator top: {note}"), String::new()];
        lines.extend(fleet.lines(now));
        screen.draw(&lines.iter().map(|line| coloured(line)).collect::<Vec<_>>())?;
        tokio::select! {
            () = super::told_to_stop() => return Ok(()),
            () = tokio::time::sleep(interval) => {}
        }
        match args.look().await {
            Ok(next) => fleet = next,
            // It may be on its way back.
            Err(error) if error.downcast_ref::<Failure>().is_some() => trouble = Some(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
}

fn is_ready(object: &Value) -> bool {
    ready(object).0 == "True"
}

impl Fleet {
    fn lines(&self, now: Timestamp) -> Vec<String> {
        let ready_of = |all: &[Value]| all.iter().filter(|one| is_ready(one)).count();
        let mut lines = vec![
            format!(
                "Providers: {} of {} ready   Proxies: {} of {} ready   Leases: {}",
                ready_of(&self.providers),
                self.providers.len(),
                ready_of(&self.proxies),
                self.proxies.len(),
                self.leases.len()
            ),
            String::new(),
        ];
        let mut held: HashMap<(&str, &str), Vec<&ShownLease>> = HashMap::new();
        for lease in &self.leases {
            held.entry((&lease.proxy.namespace, &lease.proxy.name)).or_default().push(lease);
        }
        let mut rows = table(&["PROVIDER", "READY", "PROXIES", "SERVING", "LEASED", "REASON"]);
        for provider in &self.providers {
            let name = text(provider, "/metadata/name");
            let its: Vec<&Value> = self.proxies.iter().filter(|one| text(one, "/spec/provider") == name).collect();
            let serving = its.iter().filter(|one| is_ready(one)).count();
            let leased = self.leases.iter().filter(|lease| lease.proxy.provider == name).count();
            let (status, reason) = ready(provider);
            rows.add_row([name, status, its.len().to_string(), serving.to_string(), leased.to_string(), reason]);
        }
        lines.extend(rows.to_string().lines().map(|line| line.trim_end().to_owned()));
        lines.push(String::new());
        let mut rows =
            table(&["NAMESPACE", "PROXY", "READY", "PROVIDER", "ADDRESS", "EXIT-IP", "HOLDER", "EXPIRES-IN", "REASON"]);
        for proxy in &self.proxies {
            let at = |pointer: &str| text(proxy, pointer);
            let (namespace, name) = (at("/metadata/namespace"), at("/metadata/name"));
            let its = held.get(&(namespace.as_str(), name.as_str())).map(Vec::as_slice).unwrap_or_default();
            let holder = match its {
                [] => String::new(),
                [one] => one.holder.clone().unwrap_or_default(),
                several => format!("{} holders", several.len()),
            };
            let until = its.iter().map(|lease| lease.expires_at).max();
            let left = until.map(|until| age(until.duration_since(now).as_secs())).unwrap_or_default();
            let (status, reason) = ready(proxy);
            let (address, exit) = (at("/status/address"), at("/status/exitIP"));
            rows.add_row([namespace, name, status, at("/spec/provider"), address, exit, holder, left, reason]);
        }
        lines.extend(rows.to_string().lines().map(|line| line.trim_end().to_owned()));
        lines
    }
}
