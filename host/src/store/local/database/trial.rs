//! A file that is opened on trial: what is written to it is held back until it is known to be sound, so that one that is
//! damaged stays as it is.

use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The file. Clones are the same one.
#[derive(Clone)]
pub(super) struct Trial(Arc<Inner>);

struct Inner {
    file: FileBackend,
    /// None once it is sound.
    held: Mutex<Option<Vec<Change>>>,
}

enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
    Sync,
}

impl Trial {
    pub fn new(file: FileBackend) -> Self {
        Self(Arc::new(Inner { file, held: Mutex::new(Some(vec![])) }))
    }

    /// The file is sound: what was held back is written, in the same order, and what comes from now on at once.
    pub fn accept(&self) -> io::Result<()> {
        let mut held = self.held();
        for change in held.take().into_iter().flatten() {
            match change {
                Change::Length(length) => self.0.file.set_len(length)?,
                Change::Write(offset, data) => self.0.file.write(offset, &data)?,
                Change::Sync => self.0.file.sync_data()?,
            }
        }
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Option<Vec<Change>>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a change back; answers whether it is to be done now.
    fn hold(&self, change: impl FnOnce() -> Change) -> bool {
        match &mut *self.held() {
            Some(held) => {
                held.push(change());
                false
            }
            None => true,
        }
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.file.fmt(f)
    }
}

impl StorageBackend for Trial {
    fn len(&self) -> io::Result<u64> {
        let own = self.0.file.len()?;
        let lengths = |held: &Vec<Change>| {
            held.iter().fold(own, |length, change| match change {
                Change::Length(new) => *new,
                Change::Write(offset, data) => length.max(offset + data.len() as u64),
                Change::Sync => length,
            })
        };
        Ok(self.held().as_ref().map_or(own, lengths))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let held = self.held();
        let Some(held) = held.as_ref().filter(|held| !held.is_empty()) else {
            drop(held);
            return self.0.file.read(offset, out);
        };
        // What lies beyond the end of the file is zeros, as far as it was lengthened.
        let own = self.0.file.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        self.0.file.read(offset, &mut out[..own])?;
        out[own..].fill(0);
        for change in held {
            match change {
                Change::Write(at, data) => lay_over(out, offset, data, *at),
                Change::Length(length) => {
                    let cut = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
                    out[cut..].fill(0);
                }
                Change::Sync => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if self.hold(|| Change::Length(length)) { self.0.file.set_len(length) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.hold(|| Change::Sync) { self.0.file.sync_data() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.hold(|| Change::Write(offset, data.to_vec())) { self.0.file.write(offset, data) } else { Ok(()) }
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
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
    fn what_is_held_back_is_read_and_written_only_once_accepted() {
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
        trial.accept().unwrap();
        assert_eq!(std::fs::read(path.path()).unwrap(), b"01ab\0\0\0\0\0\0\0\0cd");
        trial.write(0, b"x").unwrap();
        assert_eq!(std::fs::read(path.path()).unwrap()[0], b'x');
    }
}
