//! The conformance kit: the contract's rules as named cases, run against a plugin and its backend.
//!
//! A case makes proxies of its own, under an installation of its own, and looks at the plugin from outside: at its answers,
//! at its host calls, and at what it makes of an answer that is lost or wrong. The rules are those of `docs/providers.md`.

mod cases;
mod kit;
mod observer;
mod report;
pub mod script;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::provider::Provider;
use crate::model::proxy::ProxySpec;
use crate::plugin::grants::Secrets;
use crate::plugin::load::Loaded;

pub use report::{junit, table};
pub use script::Script;

/// What is looked at.
pub struct Subject {
    /// The plugin.
    pub plugin: Arc<Loaded>,
    /// Names of the interfaces that it imports.
    pub imports: Vec<String>,
    /// What it is granted, and its config.
    pub provider: Provider,
    /// The Secrets and files that the Provider names.
    pub secrets: Arc<dyn Secrets>,
    /// What is asked for.
    pub proxy: ProxySpec,
    /// What stands in the place of its backend; none: the Provider's own is used.
    pub script: Option<Script>,
}

/// A rule as a case.
pub struct Case {
    /// Its name, for `--case`.
    pub name: &'static str,
    /// The rule's text.
    pub rule: &'static str,
    run: cases::Run,
}

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule is kept.
    Passed,
    /// It is broken; what was seen.
    Failed(String),
    /// The rule says nothing about this plugin; why.
    NotApplicable(String),
}

/// One line of the report.
pub struct Verdict {
    /// The case.
    pub case: &'static Case,
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// What a run found.
pub struct Report {
    /// Name of the plugin.
    pub plugin: String,
    /// Each case that was run, in order.
    pub verdicts: Vec<Verdict>,
    /// Instances that could not be removed again.
    pub left: Vec<String>,
}

impl Report {
    /// Whether no rule is broken and nothing is left.
    pub fn passed(&self) -> bool {
        self.left.is_empty() && !self.verdicts.iter().any(|verdict| matches!(verdict.outcome, Outcome::Failed(_)))
    }
}

/// All cases, in the order in which they run.
pub fn all() -> &'static [Case] {
    cases::ALL
}

/// Runs the cases that `chosen` takes, one after the other.
///
/// # Errors
/// When the plugin cannot be asked at all: a connection that cannot be built, a credential that is missing, a config that
/// its schema refuses.
pub async fn run(subject: Subject, chosen: impl Fn(&Case) -> bool) -> Result<Report, String> {
    let plugin = subject.plugin.description.name.clone();
    let kit = kit::Kit::new(subject).await?;
    let (mut verdicts, mut left) = (vec![], vec![]);
    for case in all().iter().filter(|case| chosen(case)) {
        let started = Instant::now();
        kit.begin();
        let outcome = match (case.run)(&kit).await {
            Ok(()) => Outcome::Passed,
            Err(kit::End::Failed(seen)) => Outcome::Failed(seen),
            Err(kit::End::NotApplicable(why)) => Outcome::NotApplicable(why),
        };
        // Against a real backend a run takes minutes.
        tracing::info!(case = case.name, ?outcome, "the case ended");
        left.extend(kit.tidy(case.name).await);
        verdicts.push(Verdict { case, outcome, took: started.elapsed() });
    }
    Ok(Report { plugin, verdicts, left })
}
