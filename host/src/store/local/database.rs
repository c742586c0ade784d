//! The embedded database: tables of text keys and byte values, written durably and in batches.
//!
//! One thread writes. What waits while it syncs the disk shares the next commit, so that many small writes cost few syncs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    Durability, ReadOnlyDatabase, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
};
use redb::{TableHandle as _, backends::FileBackend};
use tokio::sync::{mpsc, oneshot};

use crate::store::StoreError;

/// Layout of the tables; a later one is not opened.
const FORMAT: &[u8] = b"1";
/// Writes that may wait.
const QUEUE: usize = 4096;
/// Writes of one commit.
const BATCH: usize = 512;

/// One change of one key.
#[derive(Debug)]
pub struct Write {
    table: &'static str,
    key: String,
    change: Change,
}

#[derive(Debug)]
enum Change {
    Put(Vec<u8>),
    /// The value, unless this says of (found, new) that the one found stays.
    PutUnless(Vec<u8>, Compare),
    Remove,
    /// Only while this says of (found, given) that it is the one meant.
    RemoveIf(Vec<u8>, Compare),
}

/// Compares the value found with the one given.
pub type Compare = fn(&[u8], &[u8]) -> bool;

impl Write {
    /// Sets a key.
    pub fn put(table: &'static str, key: impl Into<String>, value: Vec<u8>) -> Self {
        Self { table, key: key.into(), change: Change::Put(value) }
    }

    /// Removes a key.
    pub fn remove(table: &'static str, key: impl Into<String>) -> Self {
        Self { table, key: key.into(), change: Change::Remove }
    }

    /// Sets a key, unless `stays` says of (found, new) that the value found stays: writes may overtake each other.
    pub fn put_unless(table: &'static str, key: impl Into<String>, value: Vec<u8>, stays: Compare) -> Self {
        Self { table, key: key.into(), change: Change::PutUnless(value, stays) }
    }

    /// Removes a key while `same` says of (found, given) that it is the one meant: a write that overtook this one stays.
    pub fn remove_if(table: &'static str, key: impl Into<String>, value: Vec<u8>, same: Compare) -> Self {
        Self { table, key: key.into(), change: Change::RemoveIf(value, same) }
    }
}

struct Job {
    writes: Vec<Write>,
    done: oneshot::Sender<Result<(), String>>,
}

/// The database. Cheap to clone; the file is locked until the last clone is dropped.
#[derive(Clone)]
pub struct Database {
    inner: Arc<redb::Database>,
    jobs: mpsc::Sender<Job>,
    dir: PathBuf,
}

impl Database {
    /// Opens or makes the file, with mode 0600.
    ///
    /// # Errors
    /// When it is locked by another process, damaged, or of a later format.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |what: String| StoreError::Unavailable(format!("{}: {what}", path.display()));
        if let Some(dir) = path.parent() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| fail(e.to_string()))?;
        }
        let file = {
            use std::os::unix::fs::OpenOptionsExt;
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(|e| fail(e.to_string()))?
        };
        let inner = redb::Builder::new()
            .set_cache_size(8 << 20)
            .create_with_backend(FileBackend::new(file).map_err(|e| fail(e.to_string()))?)
            .map_err(|e| match e {
                redb::DatabaseError::DatabaseAlreadyOpen => {
                    fail("another process has it open; one operator runs per data folder".into())
                }
                e => fail(format!("{e}; restore the folder from a backup, or start with an empty one")),
            })?;
        let inner = Arc::new(inner);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("database".into())
            .spawn(move || write_all(&writer, queue))
            .map_err(|e| fail(e.to_string()))?;
        let this = Self { inner, jobs, dir: path.parent().unwrap_or(Path::new("")).to_owned() };
        match this.get("meta", "format")? {
            None => commit(&this.inner, &[Write::put("meta", "format", FORMAT.to_vec())]).map_err(fail)?,
            Some(found) if found == FORMAT => {}
            Some(found) => {
                return Err(fail(format!(
                    "its format is {}, and this version reads {}; use the version that wrote it, or a later one",
                    String::from_utf8_lossy(&found),
                    String::from_utf8_lossy(FORMAT)
                )));
            }
        }
        Ok(this)
    }

    /// One value.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn get(&self, table: &'static str, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            match self.inner.begin_read()?.open_table(definition(table)) {
                Ok(table) => Ok(table.get(key)?.map(|v| v.value().to_vec())),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(e) => Err(e.into()),
            }
        };
        read().map_err(|e| StoreError::Unavailable(e.to_string()))
    }

    /// All of a table, by key.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn all(&self, table: &'static str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let read = || -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let transaction = self.inner.begin_read()?;
            let table = match transaction.open_table(definition(table)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(vec![]),
                Err(e) => return Err(e.into()),
            };
            let rows = table.iter()?.map(|row| row.map(|(k, v)| (k.value().to_owned(), v.value().to_vec())));
            Ok(rows.collect::<Result<_, _>>()?)
        };
        read().map_err(|e| StoreError::Unavailable(e.to_string()))
    }

    /// Writes all or nothing; on return it is on the disk.
    ///
    /// # Errors
    /// When the disk fails; then nothing was written.
    pub async fn write(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        let gone = || StoreError::Unavailable("the database is closed".into());
        self.jobs.send(Job { writes, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?.map_err(StoreError::Unavailable)
    }

    /// A database of its own, with what was committed last; writers go on meanwhile. The file has no name: it is gone when it
    /// is closed. Takes as long as the disk does.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn copy(&self) -> Result<File, StoreError> {
        let path = self.dir.join(format!("backup-{}.redb", uuid::Uuid::new_v4()));
        let copied = (|| -> Result<File, redb::Error> {
            use std::os::unix::fs::OpenOptionsExt;
            let mut file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            // Nothing stays of it, however this ends.
            std::fs::remove_file(&path)?;
            let copy = redb::Builder::new()
                .set_cache_size(8 << 20)
                .create_with_backend(FileBackend::new(file.try_clone()?)?)?;
            let (from, to) = (self.inner.begin_read()?, copy.begin_write()?);
            for table in from.list_tables()? {
                let name = table.name().to_owned();
                let mut rows = to.open_table(definition(&name))?;
                for row in from.open_table(definition(&name))?.iter()? {
                    let (key, value) = row?;
                    rows.insert(key.value(), value.value())?;
                }
            }
            to.commit()?;
            drop(copy);
            file.rewind()?;
            Ok(file)
        })();
        copied.map_err(|e| {
            StoreError::Unavailable(format!("a copy beside {}: {e}", self.dir.join("state.redb").display()))
        })
    }

    /// Rows of each table of a file that no operator has open.
    ///
    /// # Errors
    /// When it is no database, damaged, or of another format.
    pub fn rows(path: &Path) -> Result<BTreeMap<String, u64>, StoreError> {
        let fail = |what: String| StoreError::Unavailable(format!("{}: {what}", path.display()));
        let read = || -> Result<_, redb::Error> {
            let transaction = ReadOnlyDatabase::open(path)?.begin_read()?;
            let mut rows = BTreeMap::new();
            let mut format = None;
            for table in transaction.list_tables()? {
                let of = transaction.open_table(definition(table.name()))?;
                rows.insert(table.name().to_owned(), of.len()?);
                if table.name() == "meta" {
                    format = of.get("format")?.map(|format| format.value().to_vec());
                }
            }
            Ok((rows, format))
        };
        match read().map_err(|e| fail(e.to_string()))? {
            (rows, Some(format)) if format == FORMAT => Ok(rows),
            _ => Err(fail("it is no database of this version".into())),
        }
    }

    /// The value of a key that is made once and then stays.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn once(
        &self,
        table: &'static str,
        key: &str,
        make: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        if let Some(found) = self.get(table, key)? {
            return Ok(found);
        }
        let made = make();
        self.write(vec![Write::put(table, key, made.clone())]).await?;
        Ok(made)
    }
}

fn definition(table: &str) -> TableDefinition<'_, &'static str, &'static [u8]> {
    TableDefinition::new(table)
}

fn write_all(database: &std::sync::Weak<redb::Database>, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::new();
    loop {
        if queue.blocking_recv_many(&mut jobs, BATCH) == 0 {
            return;
        }
        let Some(database) = database.upgrade() else { return };
        let together: Vec<Write> = jobs.iter_mut().flat_map(|job| std::mem::take(&mut job.writes)).collect();
        let outcome = commit(&database, &together);
        // Let go before anybody is answered: whoever then drops the last handle has closed the file.
        drop(database);
        for job in jobs.drain(..) {
            // A caller that gave up loses only the answer.
            let _ = job.done.send(outcome.clone());
        }
    }
}

fn commit(database: &redb::Database, writes: &[Write]) -> Result<(), String> {
    let run = || -> Result<(), redb::Error> {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        for write in writes {
            let mut table = transaction.open_table(definition(write.table))?;
            let key = write.key.as_str();
            match &write.change {
                Change::Put(value) => drop(table.insert(key, value.as_slice())?),
                Change::Remove => drop(table.remove(key)?),
                Change::PutUnless(value, stays) => {
                    if !table.get(key)?.is_some_and(|found| stays(found.value(), value)) {
                        table.insert(key, value.as_slice())?;
                    }
                }
                Change::RemoveIf(value, same) => {
                    if table.get(key)?.is_some_and(|found| same(found.value(), value)) {
                        table.remove(key)?;
                    }
                }
            }
        }
        Ok(transaction.commit()?)
    };
    run().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data/state.redb");
        {
            let database = Database::open(&path).unwrap();
            database
                .write(vec![Write::put("t", "a", b"1".to_vec()), Write::put("t", "b", b"2".to_vec())])
                .await
                .unwrap();
            database.write(vec![Write::remove("t", "a")]).await.unwrap();
        }
        let database = open_when_free(&path);
        assert_eq!(database.all("t").unwrap(), [("b".to_owned(), b"2".to_vec())]);
        assert_eq!(database.once("t", "b", || b"other".to_vec()).await.unwrap(), b"2");
        let same: Compare = |a, b| a == b;
        database.write(vec![Write::remove_if("t", "b", b"1".to_vec(), same)]).await.unwrap();
        assert_eq!(database.get("t", "b").unwrap().as_deref(), Some(&b"2"[..]), "another value stays");
        database.write(vec![Write::remove_if("t", "b", b"2".to_vec(), same)]).await.unwrap();
        assert_eq!(database.get("t", "b").unwrap(), None);
        for (new, kept) in [(b"2", b"2"), (b"1", b"2"), (b"3", b"3")] {
            database.write(vec![Write::put_unless("t", "c", new.to_vec(), |found, new| found > new)]).await.unwrap();
            assert_eq!(database.get("t", "c").unwrap().as_deref(), Some(&kept[..]));
        }
    }

    /// The writer thread lets go of the file a moment after the last handle is dropped.
    fn open_when_free(path: &Path) -> Database {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match Database::open(path) {
                Ok(database) => return database,
                Err(e) if std::time::Instant::now() > until => panic!("{e}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    #[tokio::test]
    async fn a_second_process_is_told_that_the_folder_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let _first = Database::open(&path).unwrap();
        let error = Database::open(&path).err().unwrap().to_string();
        assert!(error.contains("another process has it open"), "{error}");
    }

    #[tokio::test]
    async fn a_copy_has_all_that_was_committed_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(&dir.path().join("state.redb")).unwrap();
        let many =
            |table: &'static str, n: usize| (0..n).map(move |i| Write::put(table, format!("{i}"), vec![7; 9000]));
        database.write(many("a", 300).chain(many("b", 2)).collect()).await.unwrap();
        let mut copy = database.copy().unwrap();
        database.write(vec![Write::remove("a", "0")]).await.unwrap();
        let restored = dir.path().join("restored.redb");
        std::io::copy(&mut copy, &mut File::create(&restored).unwrap()).unwrap();
        let rows = Database::rows(&restored).unwrap();
        assert_eq!((rows["a"], rows["b"], rows["meta"]), (300, 2, 1));
        assert_eq!(Database::open(&restored).unwrap().all("a").unwrap().len(), 300);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "state.redb and restored.redb");
        std::fs::write(&restored, "no database").unwrap();
        let error = Database::rows(&restored).unwrap_err().to_string();
        assert!(error.contains("restored.redb: "), "{error}");
    }

    #[tokio::test]
    async fn a_later_format_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        Database::open(&path).unwrap().write(vec![Write::put("meta", "format", b"9".to_vec())]).await.unwrap();
        let error = loop {
            match Database::open(&path) {
                Err(e) if e.to_string().contains("another process") => std::thread::yield_now(),
                outcome => break outcome.err().unwrap().to_string(),
            }
        };
        assert!(error.contains("its format is 9"), "{error}");
    }
}
