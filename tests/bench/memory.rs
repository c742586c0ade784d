//! Resident memory of the plugin host, each time in a process of its own: what others left behind would be counted too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proxy_operator_tests::plugins::{bytes_of, loader_with};

use super::table::{Table, Target};

/// The argument that makes this program the child.
pub const CHILD: &str = "memory-child";

/// The plugin that `plugin new` writes.
const NEW: &str = "my-cloud";

/// Loads the three plugins, and prints resident and peak memory in KiB, before and after.
pub async fn child(work: &Path) {
    print();
    let loader = loader_with(Some(cache(work)));
    let mut all = vec![];
    for name in ["sandbox", "static", NEW] {
        let bytes = if name == NEW { fs::read(new_plugin(work)).expect("it was built") } else { bytes_of(name) };
        all.push(loader.load(name, bytes).await.unwrap_or_else(|e| panic!("{name}: {e}")));
    }
    print();
    drop(all);
}

fn print() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.map_or("0", |rest| rest.trim_start_matches(':').trim().trim_end_matches(" kB")).to_owned()
    };
    println!("{} {}", kib("VmRSS"), kib("VmHWM"));
}

/// In MiB: resident before, resident after, peak.
fn run(work: &Path) -> [f64; 3] {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).arg(CHILD).arg(work).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).collect();
    match figures[..] {
        [before, _, after, peak] => [before, after, peak].map(|kib| kib / 1024.0),
        _ => panic!("the child said {text:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn cache(work: &Path) -> PathBuf {
    work.join("code-memory")
}

fn new_plugin(work: &Path) -> PathBuf {
    work.join(NEW).join(format!("{NEW}.wasm"))
}

pub fn measure(table: &mut Table, work: &Path) {
    let made = Command::new(proxy_operator_tests::binary()).args(["plugin", "new", NEW]).current_dir(work).output();
    assert!(made.expect("the binary: make build").status.success());
    proxy_operator_tests::authors::build(&work.join(NEW));
    let [before, after, peak] = run(work);
    table.row("resident memory: this program", before, "MiB", Target::None);
    table.row("  three plugins compiled", after, "MiB", Target::Under(64.0));
    table.row("  its peak while compiling", peak, "MiB", Target::Under(128.0));
    let [_, after, peak] = run(work);
    table.row("  three plugins from the cache", after, "MiB", Target::Under(64.0));
    table.row("  its peak while loading", peak, "MiB", Target::Under(128.0));
}
