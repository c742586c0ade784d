//! One plugin call without I/O, beside the same on bare wasmtime.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_operator::model::instance::Presence;
use proxy_operator::plugin::engine::Runtime;
use proxy_operator_tests::plugins::{Setup, bytes_of, identity, loaded};
use tokio::task::JoinSet;
use wasmtime::Store;
use wasmtime::component::Linker;

use super::table::{Table, Target, micros, quantile};

#[allow(dead_code, reason = "generated, and one function of it is called")]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "plugin",
        imports: { default: async | trappable },
        exports: { default: async },
    });
}
use bindings::PluginPre;
use bindings::crawl::provider::types;

const ROUNDS: usize = 100;
const CALLS: usize = 100;

/// wasmtime alone: an instance in a store of its own, and the call.
struct Bare {
    pre: PluginPre<()>,
    identity: types::Identity,
}

impl Bare {
    fn new(runtime: &Runtime) -> Self {
        // Code and engine are the operator's own, so settings cannot differ.
        let (component, _) = runtime.code("bench", &bytes_of("echo")).unwrap_or_else(|e| panic!("{e}"));
        let mut linker = Linker::new(runtime.engine());
        linker.define_unknown_imports_as_traps(&component).expect("imports of the contract");
        let pre = linker.instantiate_pre(&component).and_then(PluginPre::new).expect("it links");
        let ours = identity("a", "here");
        let owner = types::Owner {
            installation: ours.owner.installation,
            proxy_uid: ours.owner.proxy_uid,
            namespace: ours.owner.namespace,
            name: ours.owner.name,
        };
        let identity = types::Identity {
            owner,
            incarnation: 0,
            attempt: 0,
            placement: ours.placement,
            provider_id: None,
            backend_id: None,
            continuation: None,
            extra: vec![],
        };
        Self { pre, identity }
    }

    async fn get(&self) {
        let mut store = Store::new(self.pre.engine(), ());
        // Never reached: without one, the first tick is a trap.
        store.set_epoch_deadline(u64::MAX / 2);
        let plugin = self.pre.instantiate_async(&mut store).await.expect("an instance");
        let answer = plugin.crawl_provider_provider().call_get(&mut store, "{}", &self.identity).await;
        assert!(matches!(answer, Ok(Ok(types::Presence::Absent))));
    }
}

async fn timed(samples: &mut Vec<Duration>, call: impl Future<Output = ()>) {
    let started = Instant::now();
    call.await;
    samples.push(started.elapsed());
}

pub async fn measure(table: &mut Table) {
    let runtime = Runtime::new(None).expect("wasmtime knows this machine");
    let bare = Bare::new(&runtime);
    let handle = Arc::new(Setup::new().concurrent_calls(64).bind(loaded("echo").await));
    let asked = identity("a", "here");
    let ours = async || assert_eq!(handle.get(&asked).await, Ok(Presence::Absent));

    let (mut our_times, mut bare_times) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        // In turn, so that whatever else the machine does strikes both.
        for _ in 0..CALLS {
            timed(&mut our_times, ours()).await;
        }
        for _ in 0..CALLS {
            timed(&mut bare_times, bare.get()).await;
        }
        if round == 0 {
            // Warm now.
            our_times.clear();
            bare_times.clear();
        }
    }
    let (median, bare_median) = (quantile(&mut our_times, 0.5), quantile(&mut bare_times, 0.5));
    table.row("plugin call without I/O, fresh instance included", micros(median), "us", Target::Under(60.0));
    table.row("  p99", micros(quantile(&mut our_times, 0.99)), "us", Target::None);
    table.row("  the same on bare wasmtime", micros(bare_median), "us", Target::None);
    table.row("  p99", micros(quantile(&mut bare_times, 0.99)), "us", Target::None);
    table.row("  ours / bare", micros(median) / micros(bare_median), "", Target::Under(1.3));

    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (handle, asked) = (handle.clone(), asked.clone());
        callers.spawn(async move {
            for _ in 0..2_000 {
                assert_eq!(handle.get(&asked).await, Ok(Presence::Absent));
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("no panic");
    }
    table.row("ten callers at once", 20_000.0 / started.elapsed().as_secs_f64(), "calls/s", Target::None);
}
