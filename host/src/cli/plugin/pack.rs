//! `plugin pack`: the manifest that brings a plugin into a cluster.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;

use super::{name_of, read};
use crate::model::PLUGIN_LABEL;
use crate::model::naming::is_label;
use crate::plugin::contract;
use crate::plugin::load::LoadError;

/// The API server refuses more, all keys together.
pub(super) const CONFIG_MAP_BYTES: usize = (1 << 20) - 4096;

/// Prints a ConfigMap. Apply it server-side: kubectl's own way would copy all of it into an annotation, which is too small.
pub(super) fn pack(file: &Path, namespace: &str) -> anyhow::Result<()> {
    let name = name_of(file);
    anyhow::ensure!(is_label(name), "{}: {}", file.display(), LoadError::BadName);
    let bytes = read(file)?;
    contract::check(&bytes).with_context(|| file.display().to_string())?;
    anyhow::ensure!(
        bytes.len() <= CONFIG_MAP_BYTES,
        "{} has {} bytes, and a ConfigMap holds {CONFIG_MAP_BYTES}: build it for size, or mount it into --plugin-dir",
        file.display(),
        bytes.len()
    );
    println!("# kubectl apply --server-side -f FILE");
    println!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: plugin-{name}\n  namespace: {namespace}");
    println!("  labels:\n    {PLUGIN_LABEL}: \"true\"");
    println!("binaryData:\n  {name}.wasm: {}", base64::engine::general_purpose::STANDARD.encode(bytes));
    Ok(())
}
