//! Copies of a database in use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek as _;
use std::path::Path;

use redb::backends::FileBackend;
use redb::{ReadOnlyDatabase, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableHandle};

use super::{Database, FORMAT, definition};
use crate::store::StoreError;

/// Of the copy, as much stays in memory.
const CACHE: usize = 8 << 20;

impl Database {
    /// A database of its own, with what was committed last; writers go on meanwhile. The file has no name: it is gone when it
    /// is closed. Takes as long as the disk does.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn copy(&self) -> Result<File, StoreError> {
        let folder = self.file.folder();
        // Where the copy fails, the database itself is as good as before.
        let copied = self.file.with(|database| Ok(copy(database, folder))).map_err(StoreError::Unavailable)?;
        copied.map_err(|e| StoreError::Unavailable(format!("{}: no copy can be made here: {e}", folder.display())))
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
}

fn copy(database: &redb::Database, folder: &Path) -> Result<File, redb::Error> {
    let mut file = tempfile::tempfile_in(folder)?;
    let backend = FileBackend::new(file.try_clone()?)?;
    let copy = redb::Builder::new().set_cache_size(CACHE).create_with_backend(backend)?;
    let (from, to) = (database.begin_read()?, copy.begin_write()?);
    for table in from.list_tables()? {
        let mut rows = to.open_table(definition(table.name()))?;
        for row in from.open_table(definition(table.name()))?.iter()? {
            let (key, value) = row?;
            rows.insert(key.value(), value.value())?;
        }
    }
    to.commit()?;
    drop(copy);
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Write;
    use super::*;

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
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "state.redb and restored.redb");
        fs::write(&restored, "no database").unwrap();
        let error = Database::rows(&restored).unwrap_err().to_string();
        assert!(error.contains("restored.redb: "), "{error}");
    }
}
