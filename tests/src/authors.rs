//! Crates that `plugin new` wrote, built as an author builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Has `command` build as an author's would: without the settings of the build that runs the tests. What such crates depend
/// on is kept between runs, apart from the builds that `tests/env` looks after.
pub fn as_author(command: &mut Command) -> &mut Command {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home folder")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(home);
    command
        .env("CARGO_TARGET_DIR", cache.join("proxy-operator/authors"))
        .env_remove("CARGO_PROFILE_RELEASE_OPT_LEVEL")
        .env_remove("RUSTFLAGS")
}

/// Builds the crate at `krate` with its own script.
pub fn build(krate: &Path) {
    let operator = std::fs::canonicalize(crate::binary()).expect("the binary");
    let mut command = Command::new("./build.sh");
    let built = as_author(command.current_dir(krate)).env("PROXY_OPERATOR", operator).output().expect("bash");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{} does not build:\n{said}", krate.display());
}
