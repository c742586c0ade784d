//! Crates that `plugin new` wrote, built as an author builds them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has `command` build as an author's would: without the settings of the build that runs the tests. What such crates and
/// packages depend on is kept between runs, apart from the builds that `tests/env` looks after.
pub fn as_author(command: &mut Command) -> &mut Command {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home folder")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(home).join("proxy-operator");
    command
        .env("CARGO_TARGET_DIR", cache.join("authors"))
        .env("npm_config_cache", cache.join("npm"))
        .env("npm_config_prefer_offline", "true")
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

/// Manifests of a Provider of `plugin` for the sandbox cloud at `address`, with its Secret.
pub fn sandbox_provider(plugin: &str, address: SocketAddr, token: &str) -> String {
    format!(
        "apiVersion: v1
kind: Secret
metadata: {{name: cloud, labels: {{crawl.example.com/provider-secret: 'true'}}}}
stringData: {{token: {token}}}
---
apiVersion: crawl.example.com/v1alpha1
kind: Provider
metadata: {{name: sandbox}}
spec:
  plugin: {{name: {plugin}}}
  connections:
    cloud:
      http:
        baseUrl: http://{address}
        permit: [loopback]
        auth: {{bearer: {{secretRef: {{name: cloud, key: token}}}}}}
  config: {{bootMs: 20}}
"
    )
}
