//! The file of the database: made whole or not at all, checked when it is opened, and opened anew once the disk failed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageError};

use super::trial::Trial;
use super::{FORMAT, Write, commit, value};
use crate::store::whole_file::sync_folder;

/// Of what is read, as much stays in memory.
const CACHE: usize = 8 << 20;
/// What helps when the file cannot be used.
const REMEDY: &str = "nothing was changed; restore the folder from a backup, or start with an empty one";

/// The file, open but for the moment after a failure. Locked against other processes.
pub(super) struct DatabaseFile {
    path: PathBuf,
    open: RwLock<Option<Database>>,
}

impl DatabaseFile {
    /// Opens the file, or makes it with mode 0600 where there is none. Errors name the file.
    pub fn open(path: &Path) -> Result<Self, String> {
        let this = Self { path: path.to_owned(), open: RwLock::default() };
        let database = open_or_make(path).map_err(|why| this.named(&why))?;
        *this.open.write().unwrap_or_else(PoisonError::into_inner) = Some(database);
        Ok(this)
    }

    /// Does something with the database. After a failure the file is opened anew, since of one that failed redb serves
    /// nothing any more: so it goes on once the disk does.
    pub fn with<T>(&self, work: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<T, String> {
        if self.read().is_none() {
            self.open_anew()?;
        }
        let outcome = match &*self.read() {
            Some(database) => work(database),
            // Another one failed in between.
            None => return Err(self.named("it was closed after a failure of the disk; try again")),
        };
        outcome.map_err(|error| {
            // Should it fail again, the next caller is told.
            let _ = self.open_anew();
            self.named(&what_helps(error))
        })
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    fn open_anew(&self) -> Result<(), String> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: it is locked.
        *open = None;
        *open = Some(open_existing(&self.path).map_err(|why| self.named(&why))?);
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, what: &str) -> String {
        format!("{}: {what}", self.path.display())
    }
}

fn open_or_make(path: &Path) -> Result<Database, String> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(no_access)?;
    }
    if is_there(path)? { open_existing(path) } else { make(path) }
}

fn is_there(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(no_access)
}

/// Makes it under another name, so that one that is cut off is never mistaken for one that was damaged.
fn make(path: &Path) -> Result<Database, String> {
    let new = path.with_extension("redb.new");
    let opened = match opened(&new, Way::New) {
        // What a crash left.
        Err(Refused::Unusable(_)) => {
            fs::remove_file(&new).map_err(no_access)?;
            opened(&new, Way::New)
        }
        opened => opened,
    };
    let database = opened.map_err(String::from)?;
    // Only now that the new one is locked: another process may have made it meanwhile.
    if is_there(path)? {
        let _ = fs::remove_file(&new);
        return open_existing(path);
    }
    let stamp = [Write::put("meta", "format", FORMAT.to_vec())];
    let made = commit(&database, &stamp).map_err(what_helps);
    let made = made.and_then(|()| fs::rename(&new, path).and_then(|()| sync_folder(path)).map_err(no_access));
    if made.is_err() {
        // What failed is told; its rest would only take room.
        let _ = fs::remove_file(&new);
    }
    made.map(|()| database)
}

fn open_existing(path: &Path) -> Result<Database, String> {
    if fs::metadata(path).map_err(no_access)?.len() == 0 {
        return Err(format!("it is empty, and the operator never leaves it so; {REMEDY}"));
    }
    // All of it is looked through first: what was damaged is an error now, and nothing worse later.
    drop(opened(path, Way::OnTrial)?);
    let database = opened(path, Way::Existing)?;
    let unreadable = |e: redb::Error| format!("{e}; {REMEDY}");
    match value(&database, "meta", "format").map_err(unreadable)? {
        Some(found) if found == FORMAT => Ok(database),
        Some(found) => Err(format!(
            "its format is {}, and this version reads {}; use the version that wrote it, or a later one",
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(FORMAT)
        )),
        None => Err(format!("it is a database, but not the operator's; {REMEDY}")),
    }
}

enum Refused {
    /// It stays as it is.
    Kept(String),
    /// Nothing can be done with it.
    Unusable(String),
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Kept(why) => why,
            Refused::Unusable(why) => format!("{why}; {REMEDY}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    New,
    Existing,
    /// Checked, and left as it is.
    OnTrial,
}

fn opened(path: &Path, way: Way) -> Result<Database, Refused> {
    let file = OpenOptions::new().read(true).write(true).create(way == Way::New).truncate(false).mode(0o600).open(path);
    let file: File = file.map_err(|e| Refused::Kept(no_access(e)))?;
    let backend = FileBackend::new(file).map_err(|e| Refused::Kept(e.to_string()))?;
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(way == Way::OnTrial);
    let database = match way {
        Way::OnTrial => builder.create_with_backend(Trial::new(backend)),
        Way::New | Way::Existing => builder.create_with_backend(backend),
    };
    database.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => {
            Refused::Kept("another process has it open; one operator runs per data folder".into())
        }
        DatabaseError::Storage(StorageError::Io(e)) if is_of_the_disk(&e) => Refused::Kept(no_access(e)),
        error => Refused::Unusable(error.to_string()),
    })
}

/// Whether it is the disk that fails, and not the content of the file.
fn is_of_the_disk(error: &io::Error) -> bool {
    error.raw_os_error().is_some()
}

fn no_access(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!("{error}; make room on its disk"),
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            format!("{error}; the operator has to write there")
        }
        _ => error.to_string(),
    }
}

fn what_helps(error: redb::Error) -> String {
    match error {
        redb::Error::Io(error) => no_access(error),
        error => error.to_string(),
    }
}
