//! Files that appear whole or not at all: the folder may be watched.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context as _;

/// Writes a file with this mode, in the place of one that is there.
pub(super) fn write(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
    let mut file = opened.with_context(|| temporary.display().to_string())?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // What failed is told; that its rest stays, too, would hide it.
        let _ = fs::remove_file(&temporary);
    });
    renamed.with_context(|| path.display().to_string())
}
