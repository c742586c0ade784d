//! Files that appear whole or not at all: the folder may be watched, and the power may go.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Writes a file with this mode, in the place of one that is there, whose owner stays. On return it is on the disk.
///
/// # Errors
/// When it cannot be written; then the old one is as it was.
pub fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.write(path, mode, text)?;
    batch.sync()
}

/// Syncs the folder of a file: a new name is on the disk once its folder is.
///
/// # Errors
/// When the disk fails.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

/// Files that are written and removed one by one; their folders are synced once.
#[derive(Default)]
pub struct Batch {
    folders: BTreeSet<PathBuf>,
}

impl Batch {
    /// Writes a file with this mode, in the place of one that is there, whose owner stays.
    ///
    /// # Errors
    /// When it cannot be written; then the old one is as it was.
    pub fn write(&mut self, path: &Path, mode: u32, text: &str) -> io::Result<()> {
        let mut draft = Draft::new(path, mode)?;
        self.folders.insert(folder(&draft.path).to_owned());
        draft.file().write_all(text.as_bytes())?;
        draft.place()
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)?;
        self.folders.insert(folder(path).to_owned());
        Ok(())
    }

    /// On return all of it is on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(self) -> io::Result<()> {
        self.folders.iter().try_for_each(|folder| File::open(folder)?.sync_all())
    }
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
        let path = self.path.clone();
        self.place()?;
        sync_folder(&path)
    }

    /// The same but for the folder, which is not synced.
    fn place(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename there is none of this name. What failed is told; that its rest stays, too, would hide it.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Removes what a crash left of files that were being written in this folder.
///
/// # Errors
/// When the folder cannot be read, or something of it cannot be removed.
pub fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_temporary) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file is called as those are that are still being written.
fn is_temporary(name: &str) -> bool {
    let number = name.strip_prefix('.').and_then(|n| n.strip_suffix(".new")).and_then(|n| n.rsplit_once('.'));
    number.is_some_and(|(_, number)| number.len() == 8 && number.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
        let mut batch = Batch::default();
        batch.remove(&file).unwrap();
        batch.sync().unwrap();
        assert!(!file.exists());
        assert!(write(&dir.path().join("no/such"), 0o600, "x").is_err());
        for name in [".a.yaml.0123abcd.new", ".a.yaml.new", "a.0123abcd.new"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        clear(dir.path()).unwrap();
        assert!(!dir.path().join(".a.yaml.0123abcd.new").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "what is no rest of ours stays");
    }
}
