//! `backup`: the state of a running operator as a file.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::client::{Target, download};
use crate::store::local::database::Database;
use crate::store::whole_file::Draft;

/// Copy the state of a running operator into a file
#[derive(Args)]
#[command(
    after_help = "The file is a database like state.redb in the data folder, of one moment, and holds the key of derived logins: keep it as\na secret. Manifests are files of yours and are not in it. To restore, stop the operator, put the file in the place of\nstate.redb, and start it.\n\nExample:\n  proxy-operator backup proxies-$(date +%F).redb --data /var/lib/proxy-operator"
)]
pub(super) struct BackupArgs {
    /// Where the copy is written, with mode 0600; one that is there is replaced
    file: PathBuf,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn backup(args: BackupArgs) -> anyhow::Result<()> {
    let path = args.file.display();
    let mut answer = download(&args.target.data, "backup").await?;
    let mut draft = Draft::new(&args.file, 0o600).with_context(|| path.to_string())?;
    while let Some(part) = answer.chunk().await? {
        draft.file().write_all(&part).with_context(|| path.to_string())?;
    }
    // A copy that cannot be opened takes nobody's place.
    let rows = Database::rows(draft.temporary()).context("the copy that the operator sent")?;
    let bytes = draft.file().metadata().with_context(|| path.to_string())?.len();
    draft.finish().with_context(|| path.to_string())?;
    let count = |table: &str| rows.get(table).copied().unwrap_or(0);
    println!(
        "{path}: {} providers, {} proxies, {} leases; {} KiB",
        count("providers"),
        count("proxies"),
        count("leases"),
        bytes.div_ceil(1024)
    );
    Ok(())
}
