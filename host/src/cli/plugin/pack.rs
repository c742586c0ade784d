//! `plugin pack`: the ConfigMaps of a plugin.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;

use crate::model::PLUGIN_LABEL;
use crate::model::naming::is_label;
use crate::plugin::contract;
use crate::plugin::load::{LoadError, digest_of};
use crate::plugin::source::upload::{PARTS, pack as cut};
use crate::store::kubernetes::DIGEST_ANNOTATION;

/// Prints or writes the manifests. Apply them server-side: kubectl's own way would copy all of it into an annotation, which
/// is too small.
pub(super) fn pack(file: &Path, namespace: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let name = file.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    anyhow::ensure!(is_label(name), "{}: {}", file.display(), LoadError::BadName);
    let bytes = super::read(file)?;
    contract::check(&bytes).with_context(|| file.display().to_string())?;
    let pieces = cut(name, &bytes);
    anyhow::ensure!(
        pieces.len() <= PARTS as usize,
        "{} needs {} ConfigMaps, and {PARTS} are the most: build it for size, push it to a registry, or mount it into --plugin-dir",
        file.display(),
        pieces.len()
    );
    let digest = digest_of(&bytes);
    if output.is_none() {
        println!("# kubectl apply --server-side -f FILE");
    }
    for (piece, bytes) in &pieces {
        let suffix = if piece.part.1 == 1 { String::new() } else { format!("-{}", piece.part.0) };
        let manifest = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: plugin-{name}{suffix}\n  namespace: {namespace}\n  labels:\n    {PLUGIN_LABEL}: \"true\"\n  annotations:\n    {DIGEST_ANNOTATION}: {digest}\nbinaryData:\n  {}: {}\n",
            piece.key(),
            base64::engine::general_purpose::STANDARD.encode(bytes)
        );
        match output {
            None => println!("---\n{manifest}"),
            Some(dir) => {
                let path = dir.join(format!("plugin-{name}{suffix}.yaml"));
                std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                std::fs::write(&path, manifest).with_context(|| path.display().to_string())?;
                println!("{}", path.display());
            }
        }
    }
    if let Some(dir) = output {
        println!("# kubectl apply --server-side -f {}", dir.display());
    }
    Ok(())
}
