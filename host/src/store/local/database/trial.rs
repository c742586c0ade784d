//! A file that is opened on trial: what is written to it stays in memory, so that one that is damaged stays as it is.

use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The file.
#[derive(Debug)]
pub(super) struct Trial {
    file: FileBackend,
    changes: Mutex<Vec<Change>>,
}

#[derive(Debug)]
enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
}

impl Trial {
    pub fn new(file: FileBackend) -> Self {
        Self { file, changes: Mutex::default() }
    }

    fn changes(&self) -> MutexGuard<'_, Vec<Change>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Trial {
    fn len(&self) -> io::Result<u64> {
        let own = self.file.len()?;
        Ok(self.changes().iter().fold(own, |length, change| match change {
            Change::Length(new) => *new,
            Change::Write(offset, data) => length.max(offset + data.len() as u64),
        }))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes();
        if changes.is_empty() {
            return self.file.read(offset, out);
        }
        // What lies beyond the end of the file is zeros, as far as it was lengthened.
        let own = self.file.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        self.file.read(offset, &mut out[..own])?;
        out[own..].fill(0);
        for change in &*changes {
            match change {
                Change::Write(at, data) => lay_over(out, offset, data, *at),
                Change::Length(length) => {
                    let cut = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
                    out[cut..].fill(0);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.changes().push(Change::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changes().push(Change::Write(offset, data.to_vec()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

/// Copies of `data`, which lies at `at`, what falls into `out`, which lies at `offset`.
fn lay_over(out: &mut [u8], offset: u64, data: &[u8], at: u64) {
    let from = offset.max(at);
    let to = (offset + out.len() as u64).min(at + data.len() as u64);
    if from < to {
        let length = (to - from) as usize;
        let (target, source) = ((from - offset) as usize, (from - at) as usize);
        out[target..target + length].copy_from_slice(&data[source..source + length]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_stays() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), b"0123456789").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path.path()).unwrap();
        let trial = Trial::new(FileBackend::new(file).unwrap());
        let seen = |offset: u64, length: usize| {
            let mut out = vec![9; length];
            trial.read(offset, &mut out).unwrap();
            out
        };
        trial.write(2, b"ab").unwrap();
        trial.set_len(4).unwrap();
        trial.set_len(14).unwrap();
        trial.write(12, b"cd").unwrap();
        trial.sync_data().unwrap();
        assert_eq!(seen(1, 13), b"1ab\0\0\0\0\0\0\0\0cd");
        assert_eq!(seen(3, 2), b"b\0");
        assert_eq!(trial.len().unwrap(), 14);
        assert_eq!(std::fs::read(path.path()).unwrap(), b"0123456789");
    }
}
