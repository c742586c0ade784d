//! `plugin test`: the conformance kit.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::bench::BenchArgs;
use crate::conformance::{self, Script, Subject};
use crate::model::proxy::ProxySpec;

/// Run the conformance kit
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator plugin test rental.wasm --provider provider.yaml --script tests/backend.yaml\n  proxy-operator plugin test rental.wasm --provider provider.yaml --case delete-until-gone --junit results.xml"
)]
pub(in crate::cli) struct TestArgs {
    #[command(flatten)]
    bench: BenchArgs,
    /// Description of a backend that stands in for the Provider's own, see docs/plugin-authors.md
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Only this case; may be repeated
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

/// Prints the cases with their rules.
pub(super) fn list() {
    for case in conformance::all() {
        println!("{}\n  {}", case.name, case.rule);
    }
}

pub(super) async fn test(args: TestArgs) -> anyhow::Result<u8> {
    for name in &args.cases {
        let known = conformance::all().iter().any(|case| case.name == name);
        anyhow::ensure!(known, "there is no case {name:?}; `plugin cases` names them");
    }
    let script = args.script.as_ref().map(|path| {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Script::parse(&text).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))
    });
    let script = script.transpose()?;
    let bench = args.bench.read().await?;
    let provider = bench.provider.metadata.name.clone().unwrap_or_default();
    let subject = Subject {
        plugin: bench.plugin,
        imports: bench.imports,
        proxy: bench.proxy.map_or_else(|| ProxySpec::of_provider(&provider), |proxy| proxy.spec),
        provider: bench.provider,
        secrets: bench.secrets,
        script,
    };
    let chosen = |case: &conformance::Case| args.cases.is_empty() || args.cases.iter().any(|name| name == case.name);
    let report = conformance::run(subject, chosen).await.map_err(anyhow::Error::msg)?;
    print!("{}", conformance::table(&report));
    if let Some(path) = &args.junit {
        std::fs::write(path, conformance::junit(&report)?).with_context(|| path.display().to_string())?;
    }
    Ok(u8::from(!report.passed()))
}
