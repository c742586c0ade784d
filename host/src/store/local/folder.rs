//! The files of the manifest folder.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::model::manifest::{Manifest, parse};

/// A manifest file is no larger.
pub(super) const FILE_BYTES: u64 = 4 << 20;

/// The files of manifests in a folder, in the order in which they count.
pub(super) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?
        .collect::<io::Result<Vec<_>>>()?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml") && !hidden(path))
        .collect();
    files.sort();
    Ok(files)
}

/// Reads a file of manifests as a standalone operator does.
///
/// # Errors
/// What is wrong with it and what to do; one that holds a Secret and that others may read is refused.
pub fn read_file(path: &Path) -> Result<Vec<Manifest>, String> {
    let meta = fs::metadata(path).map_err(|e| e.to_string())?;
    if meta.len() > FILE_BYTES {
        return Err(format!("over {FILE_BYTES} bytes; split it"));
    }
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let manifests = parse(&text).map_err(|e| e.to_string())?;
    manifests.iter().try_for_each(served)?;
    if text.trim().is_empty() {
        // Editors empty a file before they write it; and a full disk leaves it so.
        return Err("it is empty; remove the file if its objects are to go".into());
    }
    let mode = mode(&meta);
    if mode & 0o077 != 0 && manifests.iter().any(|m| matches!(m, Manifest::Secret(_))) {
        return Err(format!("it holds a Secret and its mode is {mode:04o}: run `chmod 600 {}`", path.display()));
    }
    Ok(manifests)
}

/// Refuses what only a cluster can serve.
pub(super) fn served(manifest: &Manifest) -> Result<(), String> {
    match manifest {
        Manifest::Proxy(p) if p.spec.auth.publish_secret.is_some() => {
            Err("spec.auth.publishSecret: standalone there is no Secret to publish into; leave it out".into())
        }
        _ => Ok(()),
    }
}

/// The permissions of a file.
pub(super) fn mode(meta: &Metadata) -> u32 {
    meta.permissions().mode() & 0o777
}

fn hidden(path: &Path) -> bool {
    path.file_name().and_then(|n| n.to_str()).is_none_or(|n| n.starts_with('.'))
}
