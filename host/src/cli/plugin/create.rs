//! `plugin new`.

use std::path::Path;

/// The contract.
pub(super) const WIT: &str = include_str!("../../../../wit/provider.wit");

pub(super) fn new(dir: &Path) -> anyhow::Result<()> {
    anyhow::bail!("{}", dir.display())
}
