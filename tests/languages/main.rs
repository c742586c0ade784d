//! Providers in JavaScript and Python, from what `plugin compile` made of them: a life in the sandbox cloud, and all of the
//! operator inside 128 MiB.

mod kit;
mod life;
mod small_memory;

use std::path::PathBuf;

/// The built examples.
pub const EXAMPLES: [&str; 2] = ["sandbox-js", "sandbox-py"];

/// Where they are; none, with the reason printed, where they could not be built.
pub fn examples() -> Option<PathBuf> {
    let folder = proxy_operator_tests::root().join("bin/languages");
    for name in EXAMPLES {
        if !folder.join(format!("{name}.wasm")).exists() {
            println!("SKIPPED: there is no {name}.wasm: install Node with npm, and Python with venv");
            return None;
        }
    }
    Some(folder)
}
