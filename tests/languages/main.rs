//! Providers in JavaScript and Python, from what `plugin compile` made of them: a life in the sandbox cloud, and all of the
//! operator inside 128 MiB.

mod kit;
mod life;
mod small_memory;

use std::path::PathBuf;

use proxy_operator_tests::languages::built;

/// The built examples.
pub const EXAMPLES: [&str; 2] = ["sandbox-js", "sandbox-py"];

/// Where they are; none, with the reason printed, where they could not be built.
pub fn examples() -> Option<PathBuf> {
    built(&EXAMPLES)
}
