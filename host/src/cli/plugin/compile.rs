//! `plugin compile`: code for a plugin folder.

use std::path::Path;

use anyhow::Context as _;

use super::read;
use crate::plugin::contract;
use crate::plugin::engine::Runtime;
use crate::plugin::load::digest_of;

/// Writes code as the cache keeps it, named by the digest of the file and by engine and CPU.
pub(super) fn compile(file: &Path, output: &Path) -> anyhow::Result<()> {
    let bytes = read(file)?;
    let checked = contract::check(&bytes).with_context(|| file.display().to_string())?;
    contract::validate(&checked.component).with_context(|| file.display().to_string())?;
    let runtime = Runtime::new(Some(output.to_owned())).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let digest = digest_of(&bytes);
    let hash = digest.trim_start_matches("sha256:");
    runtime.code(hash, &checked.component).with_context(|| file.display().to_string())?;
    let code = output.join(runtime.file(hash));
    let unwritten =
        || format!("{}: its code cannot be written here; name a folder that you may write to", output.display());
    let size = std::fs::metadata(&code).with_context(unwritten)?.len();
    println!("{}: {size} bytes, for {digest}", code.display());
    Ok(())
}
