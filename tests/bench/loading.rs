//! From a file to a plugin that can be called, and how large the files are.

use std::path::Path;
use std::time::Duration;

use proxy_operator::plugin::engine::Origin;
use proxy_operator_tests::plugins::{bytes_of, loader_with};

use super::table::{Table, Target, millis, quantile};

const TIMES: usize = 7;

pub async fn measure(table: &mut Table, work: &Path) {
    for name in ["sandbox", "static", "echo"] {
        let (mut cold, mut warm): (Vec<Duration>, Vec<Duration>) = (vec![], vec![]);
        for turn in 0..TIMES {
            let cache = work.join(format!("code-{name}-{turn}"));
            for (times, origin) in [(&mut cold, Origin::Compiled), (&mut warm, Origin::Cache)] {
                // As an operator that starts anew.
                let loader = loader_with(Some(cache.clone()));
                let loaded = loader.load(name, bytes_of(name)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(loaded.loading.0, origin);
                times.push(loaded.loading.1);
            }
        }
        let title = format!("load of {name}, compiled");
        table.row(&title, millis(quantile(&mut cold, 0.5)), "ms", Target::Under(150.0));
        table.row("  the fastest", millis(quantile(&mut cold, 0.0)), "ms", Target::None);
        table.row("  from the cache", millis(quantile(&mut warm, 0.5)), "ms", Target::Under(2.0));
    }
    for name in ["sandbox", "static", "echo"] {
        let size = bytes_of(name).len() as f64 / 1024.0;
        table.row(&format!("size of {name}.wasm"), size, "KiB", Target::Under(512.0));
    }
}
