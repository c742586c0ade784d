//! The figures of `docs/performance.md`, against their targets: `cargo run --release -p proxy-operator-tests --bin bench`.
//!
//! It prints and never fails on a slow machine: a figure over its target is something to look at, on a quiet machine.

mod busy;
mod calls;
mod cluster;
mod leases;
mod loading;
mod memory;
mod table;

use std::path::Path;

use proxy_operator_tests::plugins::bin;

use table::Table;

/// What the operator runs on.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, work] = arguments.as_slice()
        && mode == memory::CHILD
    {
        return runtime().block_on(memory::child(Path::new(work)));
    }
    // Beside the plugins and not in a folder for temporary files, which is often memory: a sync must reach a disk.
    let work = tempfile::tempdir_in(bin()).expect("bin/ is there: make build");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores; medians unless told otherwise");
    let mut table = Table::default();
    // First: the children start from a process that has touched nothing yet.
    memory::measure(&mut table, work.path());
    busy::measure(&mut table);
    runtime().block_on(async {
        // As a task, as in the operator: what waits outside the workers is woken across threads.
        let work = work.path().to_owned();
        let measured = tokio::spawn(async move {
            calls::measure(&mut table).await;
            loading::measure(&mut table, &work).await;
            leases::measure(&mut table, &work).await;
            cluster::measure(&mut table).await;
        });
        measured.await.expect("the measurement ends");
    });
}
