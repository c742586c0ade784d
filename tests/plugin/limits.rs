//! Each limit with a guest that goes past it, and the page that names both.

use std::fmt::Debug;
use std::fs;
use std::sync::Arc;

use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::error::{ByHost, ErrorKind};
use proxy_operator::model::instance::Presence;
use proxy_operator::plugin::contract::ContractRefused;
use proxy_operator::plugin::engine::{CodeRefused, Runtime};
use proxy_operator::plugin::limits::Limit;
use proxy_operator::plugin::load::{Loader, Policy, Refused};
use proxy_operator_tests::plugins::logs::Logs;
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, bytes_of, identity, loader, soon};
use proxy_operator_tests::root;
use serde_json::json;
use strum::IntoEnumIterator;
use wasm_encoder::{ComponentSection, Section};
use wasmparser::{Parser, Payload};

/// The component with a core module added to it, instantiated so often.
fn with_module(component: &[u8], module: &wasm_encoder::Module, instances: u32) -> Vec<u8> {
    let mut depth = 0;
    let mut modules = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            Payload::ModuleSection { .. } => {
                modules += u32::from(depth == 0);
                depth += 1;
            }
            Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            _ => {}
        }
    }
    let mut bytes = component.to_vec();
    wasm_encoder::ModuleSection(module).append_to_component(&mut bytes);
    let mut section = wasm_encoder::InstanceSection::new();
    for _ in 0..instances {
        section.instantiate(modules, std::iter::empty::<(&str, wasm_encoder::ModuleArg)>());
    }
    section.append_to_component(&mut bytes);
    bytes
}

fn module(section: &impl Section) -> wasm_encoder::Module {
    let mut module = wasm_encoder::Module::new();
    module.section(section);
    module
}

fn memory(pages: u64) -> wasm_encoder::MemorySection {
    let mut section = wasm_encoder::MemorySection::new();
    section.memory(wasm_encoder::MemoryType {
        minimum: pages,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    section
}

fn table(elements: u64) -> wasm_encoder::TableSection {
    let mut section = wasm_encoder::TableSection::new();
    section.table(wasm_encoder::TableType {
        element_type: wasm_encoder::RefType::FUNCREF,
        table64: false,
        minimum: elements,
        maximum: None,
        shared: false,
    });
    section
}

/// A guest that goes past this limit, and where: in its `describe` at load, or in its `get`.
async fn overrun(limit: Limit) -> String {
    let echo = bytes_of("echo");
    let at_load = match limit {
        // Each of them is small enough; together they are not.
        Limit::Memory => Some(with_module(&echo, &module(&memory(480)), 3)),
        Limit::Tables => Some(with_module(&echo, &module(&table(60_000)), 2)),
        Limit::Instances => Some(with_module(&echo, &wasm_encoder::Module::new(), 100)),
        Limit::Time | Limit::Stack | Limit::Handles | Limit::HostCall => None,
    };
    if let Some(bytes) = at_load {
        return loader().load("echo", bytes).await.err().unwrap_or_else(|| panic!("{limit} let it pass")).to_string();
    }
    let setup = Setup::new().config(json!({"do": limit.label()})).call_timeout(1);
    let error = setup.handle("hoard").await.get(&identity("a", "here")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    error.message
}

#[tokio::test(flavor = "multi_thread")]
async fn every_limit_ends_the_call_that_meets_it_and_says_so() {
    for limit in Limit::iter() {
        let message = overrun(limit).await;
        let says =
            if limit == Limit::Time { "still computing after 1 s".to_owned() } else { format!("it hit {limit}") };
        assert!(message.contains(&says), "{}: {message}", limit.label());
        assert!(message.contains("plugin ") && message.len() < 500, "{message}");
    }
}

#[tokio::test]
async fn a_call_past_a_limit_leaves_nothing_behind() {
    for limit in [Limit::Stack, Limit::Handles, Limit::HostCall] {
        let handle = Setup::new().config(json!({"do": limit.label()})).handle("hoard").await;
        for _ in 0..5 {
            handle.get(&identity("a", "here")).await.unwrap_err();
        }
        assert!(handle.place(&proxy_operator_tests::plugins::request("a", ""), &[]).await.is_ok());
    }
}

#[tokio::test]
async fn random_bytes_are_cut_and_log_records_counted() {
    let hoard = |what: &str| Setup::new().config(json!({"do": what}));
    let error = hoard("random").handle("hoard").await.get(&identity("a", "here")).await.unwrap_err();
    assert_eq!(error.message, (64 << 10).to_string());
    assert_eq!(hoard("log").handle("hoard").await.get(&identity("a", "here")).await, Ok(Presence::Absent));
}

/// The API server refuses a status in which something is longer than the CRD says, and then nothing is told any more.
#[tokio::test]
async fn what_no_status_could_hold_is_a_bad_answer() {
    for (long, expected) in [("host", "an address is over 253 bytes"), ("id", "backend-id is over 1024 bytes")] {
        let server = Server::start(move |_| async move {
            let host = "h".repeat(if long == "host" { 254 } else { 9 });
            let id = "i".repeat(if long == "id" { 1025 } else { 9 });
            Reply::json(
                200,
                json!({"id": id, "name": "px", "zone": "zone-a", "cloudId": "c1", "state": "running", "host": host, "port": 3128,
                    "owner": {"installation": "installation-1", "proxyUid": "uid-a"}}),
            )
        })
        .await;
        let handle = Setup::new().http("cloud", server.address).handle("sandbox").await;
        let error = handle.get(&identity("a", "zone-a@c1")).await.expect_err("it is too long");
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.message.contains(expected), "{error}");
    }
}

/// Eight calls at once, of 64 MiB each, are more than a small machine has.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_memory_that_others_hold_and_is_not_to_blame() {
    let (logs, _catching) = Logs::catch();
    let runtime = Runtime::new(None).expect("an engine");
    let loader = Loader::new(runtime, Arc::new(SystemClock::default())).expect("a loader");
    let loader = Arc::new(loader.under(Policy { call_bytes: 64 << 20, ..Policy::default() }));
    let load = async |name| loader.load(name, bytes_of(name)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    let (hoard, echo) = (load("hoard").await, load("echo").await);
    let hold = |secs| Setup::new().config(json!({"do": "hold"})).call_timeout(secs).bind(hoard.clone());
    let (first, second) = (hold(4), hold(1));
    let asked = identity("a", "here");
    let first = async {
        let error = first.get(&asked).await.unwrap_err();
        assert!(error.message.contains("still computing after 4 s"), "{error}");
    };
    let others = async {
        soon("the first holds its memory", async {
            while !logs.text().contains("holds 41943040") {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let error = second.get(&asked).await.unwrap_err();
        assert_eq!((&error.kind, error.by_host), (&ErrorKind::Transient, Some(ByHost::Queued)), "{error}");
        assert!(error.message.contains("still waited for other calls to end after 1 s"), "{error}");
        let small = Setup::new().bind(echo);
        assert_eq!(small.get(&asked).await, Ok(Presence::Absent), "what is free is enough for this one");
    };
    tokio::join!(first, others);
    let third = hold(1).get(&asked).await.unwrap_err();
    assert!(third.message.contains("still computing"), "what the first held is free again: {third}");
}

#[tokio::test]
async fn a_listing_that_would_fill_the_memory_is_an_error() {
    let error = Setup::new().handle("hoard").await.list().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert_eq!(error.message, "plugin hoard, list-instances: over 32 MiB in all");
}

/// Rows of the tables below a heading of `docs/providers.md`, each with its first cell and its last.
fn rows(heading: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs/providers.md")).unwrap();
    let (_, text) = text.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let text = text.split("\n## ").next().unwrap_or(text);
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    text.lines()
        .map(cells)
        .filter(|c| c.len() > 3)
        .map(|c| (c[1].trim_matches('`').to_owned(), c[c.len() - 2].clone()))
        .collect()
}

#[test]
fn every_limit_has_a_row_that_names_its_guest() {
    let rows = rows("Limits");
    for limit in Limit::iter() {
        let found = rows.iter().find(|(name, _)| name == limit.label());
        let (_, guest) = found.unwrap_or_else(|| panic!("docs/providers.md has no row for {}", limit.label()));
        let source = root().join(format!("tests/guests/examples/{}.rs", guest.trim_matches('`')));
        assert!(source.exists(), "{}: {}", limit.label(), source.display());
    }
}

#[tokio::test]
async fn every_refusal_has_a_row_that_names_its_proof() {
    let rows = rows("Refusals");
    let named = |refused: &dyn Debug, label: &'static str| (format!("{refused:?}"), label);
    let own = Refused::iter().filter(|r| !matches!(r, Refused::Contract | Refused::Code));
    let all = own.map(|r| named(&r, r.into()));
    let all = all.chain(ContractRefused::iter().map(|r| named(&r, r.into())));
    for (variant, label) in all.chain(CodeRefused::iter().map(|r| named(&r, r.into()))) {
        let found = rows.iter().find(|(found, _)| found == label);
        let proof = found.unwrap_or_else(|| panic!("docs/providers.md has no row for {label}")).1.trim_matches('`');
        let file = |folder: &str| fs::read_to_string(root().join(folder).join(format!("{proof}.rs"))).ok();
        if file("tests/guests/examples").is_some() {
            let refused = loader().load(proof, bytes_of(proof)).await.err();
            assert_eq!(refused.map(|error| error.label()), Some(label), "guest {proof}");
        } else {
            // Such a test tells the refusals apart by their variant, or their label.
            let names = [format!("Error::{variant}"), format!("\"{label}\"")];
            let texts = ["tests/plugin", "tests/api"].map(file);
            let proven = texts.iter().flatten().any(|text| names.iter().any(|name| text.contains(name)));
            assert!(proven, "{label}: docs/providers.md names {proof}, which is no guest and no test of it");
        }
    }
}
