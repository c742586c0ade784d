//! What both stores know of credentials: who may use which Secret, and which files may be read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::model::PROVIDER_SECRET_LABEL;
use crate::model::login::Login;
use crate::model::manifest::SecretManifest;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::SecretError;

/// A credential is no larger.
const FILE_BYTES: u64 = 1 << 20;
/// Files are looked at that often; the kubelet's own round, which brings a Secret into a mounted file, takes a minute.
const LOOK: Duration = Duration::from_secs(2);

/// The value under a key of a Secret that is for providers.
pub(super) fn provider_value(secret: &SecretManifest, key: &str) -> Result<SecretBytes, SecretError> {
    let name = &secret.name;
    if secret.labels.get(PROVIDER_SECRET_LABEL).is_none_or(|v| v != "true") {
        return Err(SecretError::Denied(format!(
            "Secret {name} is not for providers: label it {PROVIDER_SECRET_LABEL}: \"true\""
        )));
    }
    secret.data.get(key).cloned().ok_or_else(|| {
        let keys: Vec<_> = secret.data.keys().map(String::as_str).collect();
        SecretError::Missing(format!("Secret {name} has no key {key:?}; it has: {}", keys.join(", ")))
    })
}

/// The login in a Secret with the keys `username` and `password`.
pub(super) fn login(secret: &SecretManifest) -> Result<Login, SecretError> {
    let field = |key: &str| {
        let value = secret.data.get(key).and_then(SecretBytes::expose_line).filter(|v| !v.is_empty());
        value.map(str::to_owned).ok_or_else(|| {
            let name = &secret.name;
            SecretError::Missing(format!(
                "Secret {name} must hold the keys username and password as text; {key} is missing"
            ))
        })
    };
    Ok(Login { username: field("username")?, password: field("password")?.into() })
}

/// Folders below which files may be read: a Provider must not read whatever the operator can.
pub(super) struct FileRoots {
    roots: Vec<PathBuf>,
    /// Files that were asked for, as they were then.
    asked: Mutex<BTreeMap<PathBuf, Option<Stamp>>>,
}

/// By what it shows that a file was replaced: where it really lies, when it was written, its size.
type Stamp = (PathBuf, Option<SystemTime>, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let real = path.canonicalize().ok()?;
    let metadata = fs::metadata(&real).ok()?;
    Some((real, metadata.modified().ok(), metadata.len()))
}

impl FileRoots {
    /// These folders.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, asked: Mutex::default() }
    }

    /// Tells when files that were asked for have changed, come or gone. Ends never.
    pub async fn follow(&self, changed: impl Fn()) {
        loop {
            tokio::time::sleep(LOOK).await;
            let has_changed = {
                let mut asked = self.asked();
                let has_changed = asked.iter().any(|(path, before)| stamp(path) != *before);
                if has_changed {
                    // Whoever still needs them asks again.
                    asked.clear();
                }
                has_changed
            };
            if has_changed {
                changed();
            }
        }
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Stamp>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one file. Links are resolved before it is looked where it lies.
    pub fn read(&self, path: &Path) -> Result<SecretBytes, SecretError> {
        // Before it is read: a change in between is then seen.
        self.asked().entry(path.to_owned()).or_insert_with(|| stamp(path));
        let missing = |e: std::io::Error| SecretError::Missing(format!("file {}: {e}", path.display()));
        let real = path.canonicalize().map_err(missing)?;
        let inside = self.roots.iter().any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
        if !inside {
            let roots: Vec<_> = self.roots.iter().map(|r| r.display().to_string()).collect();
            return Err(SecretError::Denied(format!("file {} is not below {}", path.display(), roots.join(" or "))));
        }
        if fs::metadata(&real).map_err(missing)?.len() > FILE_BYTES {
            return Err(SecretError::Unreadable(format!("file {} is over {FILE_BYTES} bytes", path.display())));
        }
        fs::read(&real)
            .map(SecretBytes::from)
            .map_err(|e| SecretError::Unreadable(format!("file {}: {e}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// As the kubelet renews a mounted Secret: another folder, and a link to it that is replaced at once.
    #[test]
    fn a_mounted_file_that_is_rotated_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (root, at) = (dir.path(), |name: &str| dir.path().join(name));
        for (folder, value) in [("..1", "old"), ("..2", "new")] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("key"), value).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/key", at("key")).unwrap();
        let roots = FileRoots::new(vec![root.into()]);
        assert_eq!(roots.read(&at("key")).unwrap().expose(), b"old");
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(roots.read(&at("key")).unwrap().expose(), b"new");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_was_asked_for_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let roots = FileRoots::new(vec![dir.path().into()]);
        let (told, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let quiet = Duration::from_secs(60);
        let file = dir.path().join("key");
        let steps = async {
            roots.read(&file).unwrap_err();
            for value in ["first", "second one"] {
                assert!(tokio::time::timeout(quiet, changes.recv()).await.is_err(), "nothing has changed");
                fs::write(&file, value).unwrap();
                changes.recv().await.unwrap();
                assert_eq!(roots.read(&file).unwrap().expose(), value.as_bytes());
            }
            fs::remove_file(&file).unwrap();
            changes.recv().await.unwrap();
            fs::write(&file, "nobody asked").unwrap();
            assert!(tokio::time::timeout(quiet, changes.recv()).await.is_err());
        };
        tokio::select! {
            () = steps => {}
            () = roots.follow(|| told.send(()).unwrap()) => unreachable!(),
        }
    }
}
