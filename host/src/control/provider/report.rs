//! What a pass over a Provider says in its status.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::Providers;
use crate::model::ACCEPT_ABSENCE;
use crate::model::condition::{Verdict as Says, find, set, truncate};
use crate::model::error::CallError;
use crate::model::instance::Finding;
use crate::model::provider::{PluginStatus, Provider, ProviderStatus, TargetStatus};
use crate::plugin::handle::{Handle, Held};
use crate::plugin::registry::Entry;
use crate::store::{Event, Regarding, Severity, StoreError};

/// Sources named beside the one that serves.
const SHADOWED: usize = 16;
/// What the CRD lets a status say of targets: how many, and how long a name or a message.
const TARGETS: usize = 256;
const TARGET_BYTES: usize = 1024;
/// The count of Proxies is written no more often, whatever comes and goes.
const COUNT: Duration = Duration::from_secs(30);

impl From<Held> for Says {
    fn from(held: Held) -> Self {
        Self::new(false, held.reason, held.message)
    }
}

/// The condition `Ready`, and the targets.
pub(super) fn judge(
    provider: &Provider,
    entry: &Entry,
    built: &Result<Arc<Handle>, (String, String)>,
    findings: Result<Vec<Finding>, CallError>,
    mass_absence: bool,
) -> (Says, Vec<TargetStatus>) {
    let handle = match built {
        Ok(handle) => handle,
        Err((reason, message)) => return (Says::new(false, reason.clone(), message.clone()), vec![]),
    };
    let old_targets = || provider.status.as_ref().map(|s| s.targets.clone()).unwrap_or_default();
    let held = handle.holds_back();
    let findings = match findings {
        Ok(findings) => findings,
        Err(_) if let Some(held) = held => return (held.into(), old_targets()),
        Err(error) => return (Says::new(false, error.reason, error.message), old_targets()),
    };
    let findings = with_held(findings, handle.targets_held());
    let description = &handle.plugin().description;
    let serves = format!("{} {} serves", description.name, description.version);
    let says = if let Some(held) = held {
        held.into()
    } else if let Some(refused) = entry.refused.as_ref() {
        let usable = findings.is_empty() || findings.iter().any(|f| f.healthy);
        let message = format!("version {} goes on serving; {}", description.version, refused.message);
        Says::new(usable, refused.reason, message)
    } else {
        of_findings(&findings, mass_absence, &provider.name_any(), serves)
    };
    (says, statuses(findings))
}

/// No more, and no longer, than a status holds.
fn statuses(findings: Vec<Finding>) -> Vec<TargetStatus> {
    let status = |Finding { target, healthy, reason, message }: Finding| {
        let (target, message) = (truncate(&target, TARGET_BYTES), truncate(&message, TARGET_BYTES));
        Finding { target, healthy, reason, message }.into()
    };
    findings.into_iter().take(TARGETS).map(status).collect()
}

/// The findings of `check`, and the targets that calls do not reach where it says nothing of them.
fn with_held(mut findings: Vec<Finding>, held: Vec<(String, Held)>) -> Vec<Finding> {
    for (target, Held { reason, message }) in held {
        if findings.iter().all(|finding| finding.target != target) {
            findings.push(Finding { target, healthy: false, reason: reason.to_owned(), message });
        }
    }
    findings
}

/// What the findings of `check` come to.
fn of_findings(findings: &[Finding], mass_absence: bool, name: &str, serves: String) -> Says {
    let bad: Vec<String> =
        findings.iter().filter(|f| !f.healthy).map(|f| format!("{} ({}: {})", f.target, f.reason, f.message)).collect();
    if !findings.is_empty() && bad.len() == findings.len() {
        // One reason where all targets agree, the usual case of one host.
        let agreed = findings.iter().all(|f| f.reason == findings[0].reason);
        let reason = if agreed { findings[0].reason.as_str() } else { "NoTargetHealthy" };
        return Says::new(false, reason, format!("no target is usable: {}", bad.join("; ")));
    }
    if mass_absence {
        let message = format!(
            "many of its instances vanished within ten minutes, as when a project or base URL changes, so that none is \
             replaced: correct the Provider, or, if they are gone indeed: kubectl annotate provider {name} \
             --overwrite {ACCEPT_ABSENCE}=$(date -u +%FT%TZ)"
        );
        return Says::new(true, "MassAbsence", message);
    }
    if bad.is_empty() {
        return Says::new(true, "Ready", serves);
    }
    Says::new(true, "Degraded", format!("not usable: {}", bad.join("; ")))
}

impl Providers {
    pub(super) async fn write(
        &self,
        provider: &Provider,
        entry: &Entry,
        says: Says,
        targets: Vec<TargetStatus>,
    ) -> Result<(), StoreError> {
        let old = provider.status.clone().unwrap_or_default();
        let generation = provider.metadata.generation.unwrap_or(0);
        let mut status = ProviderStatus { observed_generation: Some(generation), targets, ..old.clone() };
        if let Some(plugin) = &entry.current {
            status.plugin = Some(PluginStatus {
                name: plugin.description.name.clone(),
                version: plugin.description.version.clone(),
                digest: plugin.digest.clone(),
                contract: plugin.contract.clone(),
                source: entry.source.as_ref().map(ToString::to_string).unwrap_or_default(),
                shadowed: entry.shadowed.iter().take(SHADOWED).map(ToString::to_string).collect(),
            });
        }
        let name = provider.name_any();
        status.proxies = self.count(&name, old.proxies);
        set(&mut status.conditions, "Ready", says.clone(), generation, self.clock.wall());
        if status == old {
            return Ok(());
        }
        self.store.set_provider_status(provider, status).await?;
        let before = find(&old.conditions, "Ready").map(|c| c.reason.clone());
        if before.as_ref() != Some(&says.reason) {
            let good = matches!(says.reason.as_str(), "Ready");
            self.store.event(Event {
                regarding: Regarding::Provider(name),
                severity: if good { Severity::Normal } else { Severity::Warning },
                reason: says.reason,
                message: says.message,
            });
        }
        Ok(())
    }

    /// How many Proxies to show: those that there are, or those last written where that was just now.
    fn count(&self, name: &str, shown: u32) -> u32 {
        let now = self.clock.monotonic();
        let there = self.store.proxies().iter().filter(|p| p.spec.provider == name).count() as u32;
        let mut counted = self.counted.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if there == shown || counted.get(name).is_some_and(|at| now.saturating_sub(*at) < COUNT) {
            return shown;
        }
        counted.insert(name.to_owned(), now);
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::condition::Status;

    #[test]
    fn a_target_that_calls_do_not_reach_is_told_where_check_says_nothing_of_it() {
        let target = |name: &str, healthy| Finding {
            target: name.into(),
            healthy,
            reason: if healthy { "Ok" } else { "Unreachable" }.into(),
            message: "m".into(),
        };
        let held = |name: &str| (name.to_owned(), Held { reason: "BackendUnavailable", message: "down".into() });
        let findings = with_held(vec![target("a", true), target("c", false)], vec![held("c"), held("d")]);
        let said: Vec<_> = findings.iter().map(|f| (f.target.as_str(), f.healthy, f.reason.as_str())).collect();
        assert_eq!(said, [("a", true, "Ok"), ("c", false, "Unreachable"), ("d", false, "BackendUnavailable")]);
        assert_eq!(of_findings(&findings, false, "p", "serves".into()).reason, "Degraded");
    }

    /// The API server refuses a status with more, and the old one stays for ever.
    #[test]
    fn targets_fit_their_status_whatever_is_said_of_them() {
        let good = Finding { target: "t".into(), healthy: true, reason: "Ok".into(), message: String::new() };
        let held = |n: usize| {
            (format!("{n}{}", "ä".repeat(600)), Held { reason: "BackendUnavailable", message: "m".repeat(3000) })
        };
        let shown = statuses(with_held(vec![good; 255], (0..9).map(held).collect()));
        assert_eq!(shown.len(), 256);
        assert!(shown.iter().all(|target| target.name.len() <= 1024 && target.message.len() <= 1024));
    }

    #[test]
    fn a_provider_is_ready_while_one_target_is_usable_and_names_those_that_are_not() {
        let target = |name: &str, reason: &str| Finding {
            target: name.into(),
            healthy: reason == "Ok",
            reason: reason.into(),
            message: "m".into(),
        };
        let (good, full, down) = (target("a", "Ok"), target("b", "QuotaExceeded"), target("c", "Unreachable"));
        for (findings, mass_absence, status, reason) in [
            (vec![], false, Status::True, "Ready"),
            (vec![good.clone()], false, Status::True, "Ready"),
            (vec![good.clone(), full.clone()], false, Status::True, "Degraded"),
            (vec![full.clone()], false, Status::False, "QuotaExceeded"),
            (vec![full.clone(), full.clone()], true, Status::False, "QuotaExceeded"),
            (vec![full.clone(), down.clone()], false, Status::False, "NoTargetHealthy"),
            (vec![good, full], true, Status::True, "MassAbsence"),
        ] {
            let says = of_findings(&findings, mass_absence, "p", "serves".into());
            assert_eq!((says.status, says.reason.as_str()), (status, reason), "{findings:?}");
            for bad in findings.iter().filter(|f| !f.healthy && says.reason != "MassAbsence") {
                assert!(says.message.contains(&format!("{} ({}: m)", bad.target, bad.reason)), "{}", says.message);
            }
        }
    }
}
