//! `apply` and `delete`: they change the files of the manifest folder, so that what was applied survives a restart and
//! what was deleted does not come back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::core::ObjectMeta;

use super::database::Write;
use super::documents::Documents;
use super::folder::{FILE_BYTES, mode, served};
use super::manifests::{DIGEST_ANNOTATION, buried_key, changed_provider, changed_proxy};
use super::wanted::{Declared, Wanted};
use super::{BURIED, LocalStore};
use crate::model::manifest::Manifest;
use crate::model::naming::{Kind, ObjectRef, ProxyKey};
use crate::store::whole_file::Batch;
use crate::store::{Applied, StoreError};

/// A document that is to be written: into the file that holds its object, or into a new one.
struct Edit {
    declared: Arc<Declared>,
    body: String,
    file: Option<String>,
}

impl LocalStore {
    pub(super) async fn apply_text(&self, text: &str) -> Result<Vec<(ObjectRef, Applied)>, StoreError> {
        let documents = Documents::read(text).map_err(StoreError::Invalid)?;
        let _turn = self.folder.turn.lock().await;
        let wanted = self.folder.read().map_err(|e| unwritable(&self.folder.path, &e.to_string()))?;
        let holders = self.folder.holders();
        let (mut outcomes, mut edits, mut seen) = (vec![], vec![], BTreeSet::new());
        for (manifest, body) in documents.into_bodies() {
            let declared = Arc::new(Declared::new(manifest));
            let object = &declared.object;
            if !seen.insert(object.clone()) {
                return Err(StoreError::Invalid(format!("{object} is there twice; apply one of them")));
            }
            served(&declared.manifest).map_err(|why| StoreError::Invalid(format!("{object}: {why}")))?;
            let outcome = self.outcome(&declared, &wanted)?;
            // The first file that holds it is the one that counts.
            let file = holders.get(object).and_then(BTreeSet::first).cloned();
            outcomes.push((object.clone(), outcome));
            if outcome != Applied::Unchanged || file.is_none() {
                edits.push(Edit { declared, body, file });
            }
        }
        let applied: Vec<_> = edits.iter().map(|edit| edit.declared.clone()).collect();
        let dir = self.folder.path.clone();
        blocking(move || write_edits(&dir, edits)).await?;
        // Whoever applies it wants it, although it was deleted once.
        let unbury = |one: &Arc<Declared>| Some(Write::remove(BURIED, buried_key(&one.object)?));
        self.database.write(applied.iter().filter_map(unbury).collect()).await?;
        let problems = self.apply_manifests_in_turn().await;
        for declared in &applied {
            let object = &declared.object;
            let now =
                self.metadata(object).and_then(|mut m| m.annotations.get_or_insert_default().remove(DIGEST_ANNOTATION));
            if object.kind != Kind::Secret && now.as_ref() != Some(&declared.digest) {
                let why = problems.values().next().cloned().unwrap_or("another file holds it too".into());
                return Err(StoreError::Unavailable(format!(
                    "{object} is in the manifest folder and has no effect yet: {why}"
                )));
            }
        }
        Ok(outcomes)
    }

    /// What becomes of an object with this manifest, or why it cannot be.
    fn outcome(&self, declared: &Declared, wanted: &Wanted) -> Result<Applied, StoreError> {
        let object = &declared.object;
        if let Manifest::Secret(new) = &declared.manifest {
            return Ok(match wanted.secret(&object.name) {
                None => Applied::Created,
                Some(old) if old == new => Applied::Unchanged,
                Some(_) => Applied::Configured,
            });
        }
        let Some(metadata) = self.metadata(object) else { return Ok(Applied::Created) };
        if metadata.deletion_timestamp.is_some() {
            return Err(StoreError::Invalid(format!(
                "{object} is being deleted: apply it again when it is gone (`proxy-operator wait {}/{} --for delete`)",
                object.kind.word(),
                object.name
            )));
        }
        let frozen = match &declared.manifest {
            Manifest::Proxy(new) => self.objects.get(&object.key()).and_then(|old| changed_proxy(&old, new)),
            Manifest::Provider(new) => {
                self.provider_objects.get(&object.key()).and_then(|old| changed_provider(&old, new))
            }
            Manifest::Secret(_) => None,
        };
        if let Some(field) = frozen {
            let why = format!("{object}: {field} cannot be changed; delete the object and create it anew");
            return Err(StoreError::Invalid(why));
        }
        let same = metadata.annotations.is_some_and(|all| all.get(DIGEST_ANNOTATION) == Some(&declared.digest));
        Ok(if same { Applied::Unchanged } else { Applied::Configured })
    }

    fn metadata(&self, object: &ObjectRef) -> Option<ObjectMeta> {
        match object.kind {
            Kind::Proxy => self.objects.get(&object.key()).map(|o| o.metadata.clone()),
            Kind::Provider => self.provider_objects.get(&object.key()).map(|o| o.metadata.clone()),
            Kind::Secret => None,
        }
    }

    /// Asks for the deletions first, in the database: after a crash nothing comes back. Then the documents go.
    pub(super) async fn delete_all(&self, objects: &[ObjectRef]) -> Vec<Result<Option<String>, StoreError>> {
        let _turn = self.folder.turn.lock().await;
        let holders = self.folder.holders();
        let ask = |object| self.ask_deletion(object, holders.contains_key(object));
        let asked = futures::future::join_all(objects.iter().map(ask)).await;
        let mut by_file: BTreeMap<String, HashSet<ObjectRef>> = BTreeMap::new();
        for (object, _) in objects.iter().zip(&asked).filter(|(_, asked)| asked.is_ok()) {
            for file in holders.get(object).into_iter().flatten() {
                by_file.entry(file.clone()).or_default().insert(object.clone());
            }
        }
        let dir = self.folder.path.clone();
        let kept = blocking(move || Ok(take_out(&dir, by_file))).await.unwrap_or_default();
        self.apply_manifests_in_turn().await;
        let finish = |(object, asked): (&ObjectRef, Result<(), StoreError>)| {
            asked?;
            match kept.get(object) {
                Some(why) if object.kind == Kind::Secret => {
                    Err(StoreError::Unavailable(format!("{object} stays: {why}")))
                }
                Some(why) => Ok(Some(format!("its manifest stays, without effect until it is edited: {why}"))),
                None => Ok(None),
            }
        };
        objects.iter().zip(asked).map(finish).collect()
    }

    /// `held`: whether a file holds it.
    async fn ask_deletion(&self, object: &ObjectRef, held: bool) -> Result<(), StoreError> {
        let missing = || StoreError::NotFound(object.to_string());
        if object.kind == Kind::Secret {
            return if held { Ok(()) } else { Err(missing()) };
        }
        let metadata = match self.metadata(object) {
            Some(metadata) => metadata,
            // A crash kept an earlier deletion from taking its manifest, too; or it never had an effect.
            None if held => return Ok(()),
            None => return Err(missing()),
        };
        if let Some(digest) = metadata.annotations.and_then(|mut all| all.remove(DIGEST_ANNOTATION)) {
            let key = buried_key(object).unwrap_or_default();
            self.database.write(vec![Write::put(BURIED, key, digest.into_bytes())]).await?;
        }
        match &object.namespace {
            Some(namespace) => {
                self.remove_proxy(&ProxyKey { namespace: namespace.clone(), name: object.name.clone() }).await
            }
            None => self.remove_provider(&object.name).await,
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(StoreError::Unavailable(e.to_string())))
}

fn unwritable(path: &Path, why: &str) -> StoreError {
    StoreError::Unavailable(format!("{}: {why}", path.display()))
}

/// Writes all documents. What is wrong with a file is found before the first is written.
fn write_edits(dir: &Path, edits: Vec<Edit>) -> Result<(), StoreError> {
    let (mut files, mut new) = (BTreeMap::new(), vec![]);
    for Edit { declared, body, file } in edits {
        let Some(file) = file else {
            new.push((declared, body));
            continue;
        };
        let path = dir.join(file);
        let (_, bodies, secret) = match files.entry(path.clone()) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let wrong = |why: String| unwritable(&path, &format!("{why}; mend it first, nothing was applied"));
                let text = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
                free.insert((Documents::read(&text).map_err(wrong)?, HashMap::new(), false))
            }
        };
        *secret |= declared.object.kind == Kind::Secret;
        bodies.insert(declared.object.clone(), body);
    }
    let mut texts = Vec::new();
    for (path, (mut documents, bodies, secret)) in files {
        documents.replace(bodies);
        let text = documents.text().unwrap_or_default();
        if text.len() as u64 > FILE_BYTES {
            return Err(unwritable(
                &path,
                &format!("it would be over {FILE_BYTES} bytes; split it, nothing was applied"),
            ));
        }
        let mode = fs::metadata(&path).map_or(0o644, |meta| mode(&meta));
        texts.push((path, if secret { mode & 0o700 } else { mode }, text));
    }
    let mut taken = BTreeSet::new();
    for (declared, body) in new {
        let path = free_name(dir, &declared.object, &taken);
        taken.insert(path.clone());
        texts.push((path, if declared.object.kind == Kind::Secret { 0o600 } else { 0o644 }, body));
    }
    let failed = |path: &Path, e: io::Error| unwritable(path, &format!("{e}; apply it again when that is mended"));
    let mut batch = Batch::default();
    for (path, mode, text) in texts {
        batch.write(&path, mode, &text).map_err(|e| failed(&path, e))?;
    }
    batch.sync().map_err(|e| failed(dir, e))
}

/// A file that is not there yet. Two names with dots may ask for the same.
fn free_name(dir: &Path, object: &ObjectRef, taken: &BTreeSet<PathBuf>) -> PathBuf {
    let kind = object.kind.word();
    let stem = match &object.namespace {
        Some(namespace) => format!("{kind}-{namespace}-{}", object.name),
        None => format!("{kind}-{}", object.name),
    };
    let names = std::iter::once(format!("{stem}.yaml")).chain((2..).map(|n| format!("{stem}-{n}.yaml")));
    let mut paths = names.map(|name| dir.join(name));
    paths.find(|path| !path.exists() && !taken.contains(path)).unwrap_or_default()
}

/// Takes documents out of files; answers which stay, and why. A file goes with its last one.
fn take_out(dir: &Path, by_file: BTreeMap<String, HashSet<ObjectRef>>) -> BTreeMap<ObjectRef, String> {
    let (mut kept, mut batch) = (BTreeMap::new(), Batch::default());
    let all: HashSet<ObjectRef> = by_file.values().flatten().cloned().collect();
    for (file, objects) in by_file {
        let path = dir.join(&file);
        let mut edit = || -> Result<(), String> {
            let text = match fs::read_to_string(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                text => text.map_err(|e| e.to_string())?,
            };
            let mut documents = Documents::read(&text)?;
            documents.take(&objects);
            let written = match documents.text() {
                None => batch.remove(&path),
                Some(text) => {
                    let mode = fs::metadata(&path).map_or(0o600, |meta| mode(&meta));
                    batch.write(&path, mode, &text)
                }
            };
            written.map_err(|e| e.to_string())
        };
        if let Err(why) = edit() {
            let why = format!("{}: {why}", path.display());
            kept.extend(objects.into_iter().map(|object| (object, why.clone())));
        }
    }
    if let Err(error) = batch.sync() {
        let why = format!("{}: {error}", dir.display());
        for object in all {
            kept.entry(object).or_insert(why.clone());
        }
    }
    kept
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
