//! The embedded database: tables of text keys and byte values, written durably and in batches.
//!
//! One thread writes. What waits while it syncs the disk shares the next commit, so that many small writes cost few syncs.
//! `--log proxy_operator::store=trace` shows each write before and after its commit, without its value.

mod backup;
mod file;
mod trial;

use std::path::Path;
use std::sync::{Arc, Weak};

use redb::{Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tokio::sync::{mpsc, oneshot};

use self::file::DatabaseFile;
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

impl Change {
    fn word(&self) -> &'static str {
        match self {
            Self::Put(_) | Self::PutUnless(..) => "put",
            Self::Remove | Self::RemoveIf(..) => "remove",
        }
    }
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
    file: Arc<DatabaseFile>,
    jobs: mpsc::Sender<Job>,
}

impl Database {
    /// Opens or makes the file, with mode 0600.
    ///
    /// # Errors
    /// When it is locked by another process, damaged, or of a later format.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (tell, opened) = std::sync::mpsc::channel();
        let path = path.to_owned();
        // All that is written, from the first byte on, is written by this thread.
        let write = move || {
            let file = DatabaseFile::open(&path).map(Arc::new);
            let writer = file.as_ref().map(Arc::downgrade).unwrap_or_default();
            if tell.send(file).is_ok() {
                write_all(&writer, queue);
            }
        };
        let thread = std::thread::Builder::new().name("database".into()).spawn(write);
        let fail = |e: String| StoreError::Unavailable(e);
        thread.map_err(|e| fail(e.to_string()))?;
        let file = opened.recv().map_err(|e| fail(e.to_string()))?.map_err(fail)?;
        Ok(Self { file, jobs })
    }

    /// One value.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn get(&self, table: &'static str, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.file.with(|database| value(database, table, key)).map_err(StoreError::Unavailable)
    }

    /// All of a table, by key.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn all(&self, table: &'static str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let read = |database: &redb::Database| -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let transaction = database.begin_read()?;
            let table = match transaction.open_table(definition(table)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(vec![]),
                Err(e) => return Err(e.into()),
            };
            let rows = table.iter()?.map(|row| row.map(|(k, v)| (k.value().to_owned(), v.value().to_vec())));
            Ok(rows.collect::<Result<_, _>>()?)
        };
        self.file.with(read).map_err(StoreError::Unavailable)
    }

    /// Writes all or nothing; on return it is on the disk.
    ///
    /// # Errors
    /// When the disk fails; then nothing was written.
    pub async fn write(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let (done, answer) = oneshot::channel();
        let gone = || StoreError::Unavailable("the database is closed".into());
        self.jobs.send(Job { writes, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?.map_err(StoreError::Unavailable)
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

fn value(database: &redb::Database, table: &'static str, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
    match database.begin_read()?.open_table(definition(table)) {
        Ok(table) => Ok(table.get(key)?.map(|v| v.value().to_vec())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn write_all(file: &Weak<DatabaseFile>, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::new();
    let mut fails = false;
    loop {
        if queue.blocking_recv_many(&mut jobs, BATCH) == 0 {
            return;
        }
        let Some(file) = file.upgrade() else { return };
        let together: Vec<Write> = jobs.iter_mut().flat_map(|job| std::mem::take(&mut job.writes)).collect();
        for Write { table, key, change } in &together {
            tracing::trace!(table, key, change = change.word(), "writing");
        }
        let outcome = file.with(|database| commit(database, &together));
        match &outcome {
            Err(error) if !fails => {
                tracing::error!(%error, "nothing can be written; what needs it is refused or waits")
            }
            Ok(()) if fails => tracing::info!("the database is written again"),
            outcome => tracing::trace!(done = outcome.is_ok(), "written"),
        }
        fails = outcome.is_err();
        // Let go before anybody is answered: whoever then drops the last handle has closed the file.
        drop(file);
        for job in jobs.drain(..) {
            // A caller that gave up loses only the answer.
            let _ = job.done.send(outcome.clone());
        }
    }
}

fn commit(database: &redb::Database, writes: &[Write]) -> Result<(), redb::Error> {
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
    async fn what_a_crash_left_of_a_new_one_is_made_anew_and_an_empty_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("state.redb"), dir.path().join("state.redb.new"));
        for rest in [&b""[..], b"redb\x1a\x0a", b"hello"] {
            std::fs::write(&new, rest).unwrap();
            let database = Database::open(&path).unwrap();
            database.write(vec![Write::put("t", "a", b"1".to_vec())]).await.unwrap();
            assert!(!new.exists() && path.exists());
            drop(database);
            drop(open_when_free(&path));
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::write(&path, "").unwrap();
        let error = Database::open(&path).err().unwrap().to_string();
        assert!(error.contains("state.redb: it is empty") && error.contains("restore the folder"), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
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
