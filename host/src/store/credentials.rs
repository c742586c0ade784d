//! What both stores know of credentials: who may use which Secret, and which files may be read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::PROVIDER_SECRET_LABEL;
use crate::model::login::Login;
use crate::model::manifest::SecretManifest;
use crate::model::secret::SecretBytes;
use crate::plugin::grants::SecretError;

/// A credential is no larger.
const FILE_BYTES: u64 = 1 << 20;

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
pub(super) struct FileRoots(pub Vec<PathBuf>);

impl FileRoots {
    /// Reads one file. Links are resolved before it is looked where it lies.
    pub fn read(&self, path: &Path) -> Result<SecretBytes, SecretError> {
        let missing = |e: std::io::Error| SecretError::Missing(format!("file {}: {e}", path.display()));
        let real = path.canonicalize().map_err(missing)?;
        let inside = self.0.iter().any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
        if !inside {
            let roots: Vec<_> = self.0.iter().map(|r| r.display().to_string()).collect();
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
        let roots = FileRoots(vec![root.into()]);
        assert_eq!(roots.read(&at("key")).unwrap().expose(), b"old");
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(roots.read(&at("key")).unwrap().expose(), b"new");
    }
}
