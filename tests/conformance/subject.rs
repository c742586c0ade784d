//! Subjects out of manifests.

use std::collections::BTreeMap;
use std::sync::Arc;

use proxy_operator::conformance::{Outcome, Report, Script, Subject};
use proxy_operator::model::manifest::{Manifest, parse};
use proxy_operator::model::proxy::ProxySpec;
use proxy_operator::plugin::contract;
use proxy_operator::store::local::SecretFiles;
use proxy_operator_tests::plugins::{bytes_of, loaded};

/// What the documents ask for: a Provider, its Secrets, and perhaps a Proxy.
pub async fn subject(documents: &str, script: Option<&str>) -> Subject {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (mut provider, mut proxy, mut secrets) = (None, None, BTreeMap::new());
    for manifest in parse(documents).unwrap_or_else(|e| panic!("{e}")) {
        match manifest {
            Manifest::Provider(found) => provider = Some(*found),
            Manifest::Proxy(found) => proxy = Some(found.spec),
            Manifest::Secret(found) => drop(secrets.insert(found.name.clone(), found)),
        }
    }
    let provider = provider.expect("a Provider");
    let name = provider.spec.plugin.name.clone();
    let held = SecretFiles::new(vec![]);
    held.replace(secrets);
    Subject {
        plugin: loaded(&name).await,
        imports: contract::check(&bytes_of(&name)).expect("a plugin").imports,
        proxy: proxy.unwrap_or_else(|| ProxySpec::of_provider("p")),
        provider,
        secrets: Arc::new(held),
        script: script.map(|text| Script::parse(text).unwrap_or_else(|e| panic!("{e}"))),
    }
}

/// Names of the cases that failed, with what was seen.
pub fn failed(report: &Report) -> Vec<(&'static str, String)> {
    let failed = report.verdicts.iter().filter_map(|verdict| match &verdict.outcome {
        Outcome::Failed(seen) => Some((verdict.case.name, seen.clone())),
        _ => None,
    });
    failed.collect()
}

/// Names of the cases that say nothing about it.
pub fn not_applicable(report: &Report) -> Vec<&'static str> {
    let verdicts = report.verdicts.iter().filter(|v| matches!(v.outcome, Outcome::NotApplicable(_)));
    verdicts.map(|verdict| verdict.case.name).collect()
}
