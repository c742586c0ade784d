//! Crates that `plugin new` wrote, built as an author builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the crate at `krate` with its own script. What it depends on is kept between runs, beside the plugins' own
/// builds.
pub fn build(krate: &Path) {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home folder")).join(".cache"));
    let target = cache.join("proxy-operator/guests/new");
    let built = Command::new("./build.sh")
        .current_dir(krate)
        .env("CARGO_TARGET_DIR", &target)
        .env("PROXY_OPERATOR", std::fs::canonicalize(crate::binary()).expect("the binary"))
        // Settings of the build that runs this test are not the author's.
        .env_remove("CARGO_PROFILE_RELEASE_OPT_LEVEL")
        .env_remove("RUSTFLAGS")
        .output()
        .expect("bash");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{} does not build:\n{said}", krate.display());
}
