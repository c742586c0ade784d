//! Releases of the contract: what was built against an older one runs on a newer host, and the other way round as far as
//! it can.

use proxy_operator::model::instance::Presence;
use proxy_operator::plugin::engine::Runtime;
use proxy_operator_tests::plugins::{Setup, bytes_of, identity, loaded, loader};
use proxy_operator_tests::root;
use wasmtime::Store;
use wasmtime::component::{HasSelf, Linker};

/// A host of the next release.
mod next {
    #![allow(dead_code, reason = "generated, and some of it is called")]
    include!(concat!(env!("OUT_DIR"), "/next_release.rs"));
}
use next::crawl::provider::{clock, faults, http, log, random, secrets, ssh, types};

/// `echo`, as it was built when 0.1.0 was released. Never built again.
fn fixture() -> Vec<u8> {
    std::fs::read(root().join("tests/fixtures/contract-0.1.0.wasm")).expect("it is committed")
}

struct Host;

impl types::Host for Host {}
impl faults::Host for Host {}

impl ssh::Host for Host {
    fn exec(&mut self, _: String, _: ssh::Command) -> wasmtime::Result<Result<ssh::Output, faults::Fault>> {
        Err(wasmtime::format_err!("not asked for"))
    }
}

impl http::Host for Host {
    fn send(&mut self, _: String, _: http::HttpRequest) -> wasmtime::Result<Result<http::HttpResponse, faults::Fault>> {
        Err(wasmtime::format_err!("not asked for"))
    }
}

impl secrets::Host for Host {
    fn get(&mut self, _: String) -> wasmtime::Result<Result<Vec<u8>, faults::Fault>> {
        Err(wasmtime::format_err!("not asked for"))
    }
}

impl log::Host for Host {
    fn write(&mut self, _: log::Level, _: String, _: Vec<(String, String)>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl clock::Host for Host {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(0)
    }
    fn monotonic_ms(&mut self) -> wasmtime::Result<u64> {
        Ok(0)
    }
    fn remaining_ms(&mut self) -> wasmtime::Result<u32> {
        Ok(1000)
    }
    fn later(&mut self) -> wasmtime::Result<u32> {
        Ok(7)
    }
}

impl random::Host for Host {
    fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        Ok(vec![7; len as usize])
    }
}

#[test]
fn the_released_contract_is_the_one_that_was_released() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    assert_eq!(
        read("wit/provider.wit"),
        read("wit/released/provider-0.1.0.wit"),
        "0.1.0 is frozen: release another version"
    );
}

#[tokio::test]
async fn a_plugin_of_the_first_release_runs_on_this_host() {
    let plugin = loader().load("echo", fixture()).await.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plugin.contract, "0.1.0");
    assert_eq!(Setup::new().bind(plugin).get(&identity("a", "here")).await, Ok(Presence::Absent));
}

#[tokio::test]
async fn a_plugin_of_the_first_release_runs_on_a_host_of_the_next() {
    let runtime = Runtime::new(None).unwrap();
    for (bytes, summary) in [
        (fixture(), "A guest for tests"),
        (bytes_of("newer-contract"), "Speaks the next release of the contract"),
        (bytes_of("newer-function"), "7"),
    ] {
        let (component, _) = runtime.code(&proxy_operator::plugin::load::digest_of(&bytes), &bytes).unwrap();
        let mut linker = Linker::new(runtime.engine());
        next::Plugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut Host| host).unwrap();
        let mut store = Store::new(runtime.engine(), Host);
        store.set_epoch_deadline(1_000);
        let instance = linker.instantiate_async(&mut store, &component).await.unwrap();
        // The interface that came later is looked up, and may be missing.
        assert!(instance.get_export_index(&mut store, None, "crawl:provider/hints@0.1.1").is_none());
        let plugin = next::Plugin::new(&mut store, &instance).unwrap();
        let described = plugin.crawl_provider_provider().call_describe(&mut store).await.unwrap();
        assert_eq!(described.summary, summary);
    }
}

#[tokio::test]
async fn a_newer_plugin_runs_here_unless_it_uses_what_is_new() {
    let plugin = loaded("newer-contract").await;
    assert_eq!(plugin.contract, "0.1.1");
    assert_eq!(Setup::new().bind(plugin).get(&identity("a", "here")).await, Ok(Presence::Absent));
    let error = loader().load("newer-function", bytes_of("newer-function")).await.err().unwrap().to_string();
    for says in ["crawl:provider@0.1.1", "crawl:provider@0.1.0", "clock", "later", "upgrade the operator"] {
        assert!(error.contains(says), "{says}: {error}");
    }
}
