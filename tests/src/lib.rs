//! Labs that the suites run in: real processes of the product on loopback, started by the tests and ended by them.

pub mod apiserver;
pub mod authors;
pub mod backend;
pub mod bad_plugins;
pub mod cgroup;
pub mod interceptor;
pub mod kube_api;
pub mod kube_lab;
pub mod lab;
pub mod languages;
pub mod oci_registry;
pub mod plugins;
pub mod process;
pub mod small_disk;
pub mod sshd;
pub mod strace;
pub mod systemd;

use std::path::PathBuf;

/// The checkout.
pub fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into())).join("..")
}

/// The operator's binary, as `make build` leaves it.
pub fn binary() -> PathBuf {
    let path = root().join("bin/proxy-operator");
    assert!(path.exists(), "{} is missing: run the suites with tests/run", path.display());
    path
}

/// The YAML examples of a page of `docs/`.
pub fn examples(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
    let blocks = text.split("\n```yaml\n").skip(1);
    let all: Vec<_> = blocks.filter_map(|rest| rest.split("\n```").next()).map(str::to_owned).collect();
    assert!(!all.is_empty(), "{page} has no example");
    all
}
