//! A file of a plugin folder, a ConfigMap or a registry.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use proxy_operator::model::clock::SystemClock;
use proxy_operator::plugin::engine::Runtime;
use proxy_operator::plugin::load::Loader;

/// Bytes of code that are still compiled: as many as the seeds have, some times over.
const CODE: u64 = 4 << 10;

static TOKIO: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

static LOADER: LazyLock<Arc<Loader>> = LazyLock::new(|| {
    let runtime = Runtime::new(None).expect("wasmtime knows this machine");
    Arc::new(Loader::new(runtime, Arc::new(SystemClock::default())).expect("the host functions fit the contract"))
});

// The fuzzer's hook ends the process at a panic that the loader catches; of one that it lets through the fuzzer still hears.
fuzz_target!(init: drop(std::panic::take_hook()), |bytes: &[u8]| {
    TOKIO.block_on(proxy_operator_fuzz::load(&LOADER, "seed", bytes, CODE));
});
