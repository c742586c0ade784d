//! `doctor`: looks at a running operator and its folders, or at a cluster, and says what to do.

mod cluster;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::client::{Target, ask, command, read};
use super::tables::{ready, ready_condition, text};
use crate::rest::local::Checked;
use crate::store::{Event, Regarding};

/// Proxies that are named one by one.
const NAMED: usize = 5;
/// Reasons that somebody wants, or that pass by themselves.
const PASSING: [&str; 6] = ["", "Paused", "Creating", "NotAsked", "ProbePending", "ProviderPending"];
/// What each reason means, and what to do about it.
const REASONS: &str = include_str!("../../../docs/conditions.md");

/// Find what is wrong, and what to do about it
#[derive(Args)]
#[command(
    after_help = "On a machine it looks at the data folder, the socket, the manifests, every Provider (whose backends are asked anew) and the\nProxies; in a cluster at the API server, the CRDs, the leader, the Providers and the Proxies. The exit status is 1 when\nsomething is wrong.\n\nExamples:\n  proxy-operator doctor --data /var/lib/proxy-operator\n  proxy-operator doctor --kubeconfig ~/.kube/config"
)]
pub(super) struct DoctorArgs {
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR", required_unless_present = "kubeconfig")]
    data: Option<PathBuf>,
    /// Looks at this cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The operator's namespace there
    #[arg(long, env = "PROXY_OPERATOR_NAMESPACE", value_name = "NAME", default_value = "proxy-operator")]
    namespace: String,
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

    fn note(&self, what: &str) {
        println!("note   {what}");
    }

    fn bad(&mut self, what: &str, remedy: &str) {
        self.wrong += 1;
        println!("WRONG  {what}\n       -> {remedy}");
    }

    /// With what helps against the reason, where that is known.
    fn reason(&mut self, what: &str, reason: &str, message: &str, more: &str) {
        let remedy = match remedy(reason) {
            Some(remedy) => format!("{remedy}; {more} shows the whole"),
            None => format!("{more} shows the whole"),
        };
        let reason = if reason.is_empty() { String::new() } else { format!("{reason}: ") };
        self.bad(&format!("{what}: {reason}{message}"), &remedy);
    }

    /// By its condition Ready.
    fn object(&mut self, what: &str, object: &Value, more: &str) {
        let ready = ready_condition(object).unwrap_or(&Value::Null);
        let message = Some(text(ready, "/message")).filter(|message| !message.is_empty());
        self.reason(what, &text(ready, "/reason"), &message.unwrap_or("nothing is known of it yet".into()), more);
    }
}

/// What the documentation says to do about a reason.
fn remedy(reason: &str) -> Option<&'static str> {
    // Events, further down, have nothing to be done about.
    let reasons = REASONS.split("\n## Events").next().unwrap_or_default();
    let row = reasons.lines().find(|line| line.starts_with(&format!("| `{reason}` |")))?;
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    cells.last().copied().filter(|cell| cells.len() > 2 && !cell.is_empty())
}

pub(super) async fn doctor(args: DoctorArgs) -> anyhow::Result<u8> {
    let mut report = Report::default();
    if let Some(data) = args.data.filter(|_| args.kubeconfig.is_none()) {
        Machine { target: Target { data } }.look(&mut report).await?;
    }
    if let Some(kubeconfig) = args.kubeconfig {
        cluster::look(kubeconfig, &args.namespace, &mut report).await?;
    }
    println!();
    match report.wrong {
        0 => println!("nothing is wrong"),
        1 => println!("1 thing is wrong"),
        several => println!("{several} things are wrong"),
    }
    Ok(u8::from(report.wrong > 0))
}

struct Machine {
    target: Target,
}

impl Machine {
    async fn look(&self, report: &mut Report) -> anyhow::Result<()> {
        if self.folder(report) && self.socket(report).await {
            self.manifests(report).await?;
            self.providers(report).await?;
            proxies(&read::<Vec<Value>>(&self.target.data, "proxies").await?, report);
        }
        Ok(())
    }

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
            _ => report.note("the operator answers, and does not lead: the replica that does can say more"),
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
            report.note("there is no Provider: `proxy-operator apply -f FILE` makes one");
        }
        for Checked { provider, targets, failure } in checked {
            let more = format!("`proxy-operator describe provider {provider}`");
            if let Some((reason, message)) = failure {
                report.reason(&format!("provider {provider}"), &reason, &message, &more);
                continue;
            }
            let bad: Vec<_> = targets.iter().filter(|target| !target.healthy).collect();
            for target in &bad {
                let what = format!("provider {provider}, {}", target.name);
                report.reason(&what, &target.reason, &target.message, &more);
            }
            if bad.is_empty() {
                let of = if targets.is_empty() { String::new() } else { format!(", {} targets", targets.len()) };
                report.good(&format!("provider {provider}: its backend answers{of}"));
            }
        }
        Ok(())
    }
}

/// Those that are not ready, and are not meant to be.
fn proxies(all: &[Value], report: &mut Report) {
    let (lacking, serving): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|proxy| ready(proxy).0 != "True");
    let (passing, wrong): (Vec<&Value>, Vec<&Value>) =
        lacking.into_iter().partition(|proxy| PASSING.contains(&ready(proxy).1.as_str()));
    let counted = format!("proxies: {} of {} are ready", serving.len(), all.len());
    match passing.len() {
        0 if wrong.is_empty() => report.good(&counted),
        0 => report.note(&counted),
        waiting => report.note(&format!("{counted}; {waiting} are being made or paused")),
    }
    for proxy in wrong.iter().take(NAMED) {
        let (namespace, name) = (text(proxy, "/metadata/namespace"), text(proxy, "/metadata/name"));
        let more = format!("`proxy-operator describe proxy {name} -n {namespace}`");
        report.object(&format!("proxy {namespace}/{name} is not ready"), proxy, &more);
    }
    if wrong.len() > NAMED {
        let what = format!("{} more proxies are not ready", wrong.len() - NAMED);
        report.bad(&what, "`proxy-operator top` shows them first");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_is_what_the_documentation_says() {
        assert_eq!(remedy("PluginMissing"), Some("apply it, or correct `spec.plugin.name`"));
        assert_eq!(remedy("ConfigMissing"), Some("correct the Provider"));
        for without in ["Running", "NoSuchReason", "", "Abandoned"] {
            assert_eq!(remedy(without), None, "{without}");
        }
    }
}
