//! `doctor`: looks at a running operator and its folders, and says what to do.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::client::{Target, ask, command, read};
use super::tables::{ready, text};
use crate::rest::local::Checked;
use crate::store::{Event, Regarding};

/// Proxies that are named one by one.
const NAMED: usize = 5;

/// Find what is wrong, and what to do about it
#[derive(Args)]
#[command(
    after_help = "It looks at the data folder, the socket, the manifests, every Provider (whose backends are asked anew) and the Proxies.\nThe exit status is 1 when something is wrong.\n\nExamples:\n  proxy-operator doctor --data /var/lib/proxy-operator\n  kubectl -n proxy-operator exec deploy/proxy-operator -- proxy-operator doctor --data /data"
)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    target: Target,
}

/// What was found, line by line.
#[derive(Default)]
struct Report {
    wrong: usize,
}

impl Report {
    fn good(&self, what: &str) {
        println!("ok     {what}");
    }

    fn bad(&mut self, what: &str, remedy: &str) {
        self.wrong += 1;
        println!("WRONG  {what}\n       -> {remedy}");
    }
}

pub(super) async fn doctor(args: DoctorArgs) -> anyhow::Result<u8> {
    let mut report = Report::default();
    let reached = args.folder(&mut report) && args.socket(&mut report).await;
    if reached {
        args.manifests(&mut report).await?;
        args.providers(&mut report).await?;
        args.proxies(&mut report).await?;
    }
    println!();
    match report.wrong {
        0 => println!("nothing is wrong"),
        1 => println!("1 thing is wrong"),
        several => println!("{several} things are wrong"),
    }
    Ok(u8::from(report.wrong > 0))
}

impl DoctorArgs {
    fn folder(&self, report: &mut Report) -> bool {
        let data = self.target.data.display();
        match std::fs::metadata(&self.target.data) {
            Err(error) => {
                let remedy = "give the folder that `run` has with --data, as the operator's user";
                report.bad(&format!("the data folder {data} cannot be read: {error}"), remedy);
                return false;
            }
            Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
                let mode = meta.permissions().mode() & 0o777;
                let what = format!("others may look into the data folder {data}: its mode is {mode:04o}");
                report.bad(&what, &format!("chmod 700 {data}"));
            }
            Ok(_) => report.good(&format!("the data folder {data} is there, and private")),
        }
        true
    }

    async fn socket(&self, report: &mut Report) -> bool {
        if let Err(error) = ask(&self.target.data, Method::GET, "providers").await {
            let remedy =
                "start it: `proxy-operator run --standalone …`, or look why it ended: `journalctl -u proxy-operator`";
            report.bad(&format!("{error:#}"), remedy);
            return false;
        }
        match ask(&self.target.data, Method::GET, "leases").await {
            Ok((StatusCode::OK, _)) => report.good("the operator answers, and leads"),
            _ => report.bad(
                "the operator answers, and does not lead",
                "ask the replica that does: `kubectl get lease proxy-operator -o yaml` names it",
            ),
        }
        true
    }

    /// The last word about each file.
    async fn manifests(&self, report: &mut Report) -> anyhow::Result<()> {
        let mut files = BTreeMap::new();
        for event in read::<Vec<Event>>(&self.target.data, "events").await? {
            if let Regarding::Manifest(file) = &event.regarding {
                files.insert(file.clone(), event);
            }
        }
        files.retain(|_, event| event.reason == "ManifestRefused");
        if files.is_empty() {
            report.good("no manifest is wrong");
        }
        for event in files.values() {
            report
                .bad(&event.message, "mend it; it counts as soon as it is written, and until then nothing is deleted");
        }
        Ok(())
    }

    async fn providers(&self, report: &mut Report) -> anyhow::Result<()> {
        // One that stands by calls nobody; that was told.
        let Ok(checked) = command::<Vec<Checked>>(&self.target.data, "checks", String::new()).await else {
            return Ok(());
        };
        if checked.is_empty() {
            report.bad("there is no Provider", "apply one: `proxy-operator apply -f FILE`; docs/providers.md says how");
        }
        for Checked { provider, targets, failure } in checked {
            let describe = format!("`proxy-operator describe provider {provider}` shows the whole");
            if let Some((reason, message)) = failure {
                let reason = if reason.is_empty() { String::new() } else { format!("{reason}: ") };
                report.bad(&format!("provider {provider}: {reason}{message}"), &describe);
                continue;
            }
            let bad: Vec<_> = targets.iter().filter(|target| !target.healthy).collect();
            for target in &bad {
                let what = format!("provider {provider}, {}: {}: {}", target.name, target.reason, target.message);
                report.bad(&what, &describe);
            }
            if bad.is_empty() {
                let of = if targets.is_empty() { String::new() } else { format!(", {} targets", targets.len()) };
                report.good(&format!("provider {provider}: its backend answers{of}"));
            }
        }
        Ok(())
    }

    async fn proxies(&self, report: &mut Report) -> anyhow::Result<()> {
        let all: Vec<Value> = read(&self.target.data, "proxies").await?;
        let lacking: Vec<&Value> = all.iter().filter(|proxy| ready(proxy).0 != "True").collect();
        if lacking.is_empty() {
            report.good(&format!("proxies: {}, all ready", all.len()));
        }
        for proxy in lacking.iter().take(NAMED) {
            let (namespace, name) = (text(proxy, "/metadata/namespace"), text(proxy, "/metadata/name"));
            let conditions = proxy.pointer("/status/conditions").and_then(Value::as_array);
            let ready = conditions.into_iter().flatten().find(|one| one["type"] == "Ready");
            let why = ready.map(|one| format!("{}: {}", text(one, "/reason"), text(one, "/message")));
            let what = format!(
                "proxy {namespace}/{name} is not ready: {}",
                why.unwrap_or("nothing is known of it yet".into())
            );
            report.bad(&what, &format!("`proxy-operator describe proxy {name} -n {namespace}` shows the whole"));
        }
        if lacking.len() > NAMED {
            let what = format!("{} more proxies are not ready", lacking.len() - NAMED);
            report.bad(&what, "`proxy-operator top` shows them first");
        }
        Ok(())
    }
}
