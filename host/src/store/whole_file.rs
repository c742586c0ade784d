//! Files that appear whole or not at all: the folder may be watched, and the power may go.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Writes a file with this mode, in the place of one that is there, whose owner stays. On return it is on the disk.
///
/// # Errors
/// When it cannot be written; then the old one is as it was.
pub fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut draft = Draft::new(path, mode)?;
    draft.file().write_all(text.as_bytes())?;
    draft.finish()
}

/// A file that takes its place when it is finished, and is removed when it is dropped before.
pub struct Draft {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Draft {
    /// An empty file with this mode, and with the owner of the one whose place it is to take.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(path: &Path, mode: u32) -> io::Result<Self> {
        // A link stays one: its file is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{:08x}.new", rand::random::<u32>()));
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        let owner = fs::metadata(&path).ok().map(|old| (old.uid(), old.gid()));
        let draft = Self { path, temporary, file };
        let made = draft.file.metadata()?;
        if let Some((uid, gid)) = owner.filter(|owner| *owner != (made.uid(), made.gid())) {
            fchown(&draft.file, Some(uid), Some(gid))?;
        }
        // Whatever the umask took away.
        draft.file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(draft)
    }

    /// What is written to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Where it is until it is finished.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Takes its place; on return it is on the disk.
    ///
    /// # Errors
    /// When the disk fails; before it has taken its place the old one is as it was.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        sync_folder(&self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename there is none of this name. What failed is told; that its rest stays, too, would hide it.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Removes a file; on return it is gone from the disk.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(path)
}

/// A new name in a folder is on the disk once the folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_link_to_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        write(&file, 0o600, "one").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, 0o644, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside them");
        remove(&file).unwrap();
        assert!(write(&dir.path().join("no/such"), 0o600, "x").is_err());
    }
}
