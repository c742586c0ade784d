//! What the files of the manifest folder ask for. A file that is as it was is not read again: a change costs what its file
//! costs, however many there are.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::folder::{files, read_file};
use crate::model::manifest::{Manifest, SecretManifest};
use crate::model::naming::{Kind, ObjectRef};
use crate::model::spec_hash::hex;

/// A file that was written so recently may be cut off between two documents: nothing goes because it lacks in it.
const UNFINISHED: Duration = Duration::from_secs(5);
/// A file that was written so recently may be written again without looking any different.
const UNSURE: Duration = Duration::from_secs(2);

/// An object of a manifest.
pub(super) struct Declared {
    /// A Proxy without a namespace is in `default`.
    pub manifest: Manifest,
    pub object: ObjectRef,
    /// The digest that an object of this manifest is stored with; empty for a Secret.
    pub digest: String,
}

impl Declared {
    pub fn new(mut manifest: Manifest) -> Self {
        let digest = match &mut manifest {
            Manifest::Proxy(proxy) => {
                proxy.metadata.namespace.get_or_insert_with(|| "default".into());
                digest(&**proxy)
            }
            Manifest::Provider(provider) => digest(&**provider),
            Manifest::Secret(_) => String::new(),
        };
        Self { object: manifest.reference(), manifest, digest }
    }
}

/// The files as they were last read.
#[derive(Default)]
pub(super) struct Files(HashMap<String, Held>);

/// What a file held when it was last right.
#[derive(Default)]
struct Held {
    /// None: it is to be read again.
    stamp: Option<Stamp>,
    declared: Vec<Arc<Declared>>,
}

/// What of a file changes whenever it is written, moved or given other permissions.
#[derive(PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The objects that the folder asks for.
#[derive(Default)]
pub(super) struct Wanted {
    /// Each with the file that holds it.
    objects: BTreeMap<ObjectRef, (Arc<Declared>, String)>,
    /// How many files there are.
    pub files: usize,
    /// Those that were written a moment ago.
    pub fresh: BTreeSet<String>,
    /// What is wrong, by file.
    pub problems: BTreeMap<String, String>,
}

impl Files {
    /// Looks through a folder; of a file that is wrong now, what it held when it was last right.
    pub fn read(&mut self, dir: &Path, now: SystemTime) -> io::Result<Wanted> {
        let paths = files(dir)?;
        let mut wanted = Wanted { files: paths.len(), ..Wanted::default() };
        let mut before = std::mem::take(&mut self.0);
        for path in paths {
            let file = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            let held = before.remove(&file).unwrap_or_default();
            // Taken before the file is read: what is written meanwhile changes it.
            let meta = fs::metadata(&path);
            let written = meta.as_ref().ok().and_then(|meta| age(meta.mtime(), meta.mtime_nsec(), now));
            if written.is_some_and(|age| age < UNFINISHED) {
                wanted.fresh.insert(file.clone());
            }
            let held = match &meta {
                Ok(meta) if held.stamp.as_ref() == Some(&Stamp::of(meta)) => held,
                meta => match read_file(&path) {
                    Ok(manifests) => Held {
                        stamp: meta.as_ref().ok().and_then(|meta| Stamp::sure(meta, now)),
                        declared: manifests.into_iter().map(|manifest| Arc::new(Declared::new(manifest))).collect(),
                    },
                    Err(problem) => {
                        let problem = format!("{}: {problem}; its objects stay as they are", path.display());
                        wanted.problems.insert(file.clone(), problem);
                        Held { stamp: None, ..held }
                    }
                },
            };
            for declared in &held.declared {
                match wanted.objects.entry(declared.object.clone()) {
                    Entry::Vacant(free) => drop(free.insert((declared.clone(), file.clone()))),
                    Entry::Occupied(_) => {
                        let what = format!("{} is in another file too, which wins", declared.object);
                        wanted.problems.insert(file.clone(), format!("{}: {what}", path.display()));
                    }
                }
            }
            self.0.insert(file, held);
        }
        Ok(wanted)
    }

    /// The files that hold each object, in the order in which they count.
    pub fn holders(&self) -> HashMap<ObjectRef, BTreeSet<String>> {
        let mut holders: HashMap<_, BTreeSet<String>> = HashMap::new();
        for (file, held) in &self.0 {
            for declared in &held.declared {
                holders.entry(declared.object.clone()).or_default().insert(file.clone());
            }
        }
        holders
    }
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            mode: meta.mode(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// None while a further write could leave the same one.
    fn sure(meta: &Metadata, now: SystemTime) -> Option<Self> {
        let ages = [age(meta.mtime(), meta.mtime_nsec(), now), age(meta.ctime(), meta.ctime_nsec(), now)];
        ages.iter().all(|age| age.is_some_and(|age| age >= UNSURE)).then(|| Self::of(meta))
    }
}

/// For how long a time is past; none of one in the future, which says nothing.
fn age(seconds: i64, nanoseconds: i64, now: SystemTime) -> Option<Duration> {
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanoseconds).unwrap_or(0));
    now.duration_since(UNIX_EPOCH.checked_add(since)?).ok()
}

impl Wanted {
    /// Those of a kind, each with its file.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = (&Arc<Declared>, &str)> {
        let all = self.objects.values().filter(move |(declared, _)| declared.object.kind == kind);
        all.map(|(declared, file)| (declared, file.as_str()))
    }

    /// Whether it is among them.
    pub fn holds(&self, object: &ObjectRef) -> bool {
        self.objects.contains_key(object)
    }

    /// The Secret of this name.
    pub fn secret(&self, name: &str) -> Option<&SecretManifest> {
        match &self.objects.get(&ObjectRef::new(Kind::Secret, "", name))?.0.manifest {
            Manifest::Secret(secret) => Some(secret),
            _ => None,
        }
    }
}

fn digest<T: Serialize>(manifest: &T) -> String {
    hex(&Sha256::digest(serde_json::to_vec(manifest).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(port: u16) -> String {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: a}}\nspec: {{provider: p, port: {port}}}\n"
        )
    }

    #[test]
    fn a_file_is_read_again_once_it_changed_or_may_have_and_not_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, proxy(1)).unwrap();
        let mut files = Files::default();
        let mut read = |later: u64| {
            let now = SystemTime::now() + Duration::from_secs(later);
            let wanted = files.read(dir.path(), now).unwrap();
            let (declared, file) = wanted.of(Kind::Proxy).next().unwrap();
            assert_eq!(file, "a.yaml");
            declared.clone()
        };
        let (first, second) = (read(0), read(10));
        assert!(!Arc::ptr_eq(&first, &second), "it was written a moment ago");
        assert!(Arc::ptr_eq(&second, &read(10)));
        // In place, with the same length and date: what a file system tells of it changes all the same.
        let date = fs::metadata(&path).unwrap().modified().unwrap();
        let changed = fs::metadata(&path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
        while fs::metadata(&path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap() == changed {
            fs::write(&path, proxy(2)).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(date).unwrap();
        }
        let third = read(10);
        assert_ne!(third.digest, second.digest);
        fs::write(&path, "kind: [").unwrap();
        assert!(Arc::ptr_eq(&third, &read(10)), "a wrong file keeps what it held");
    }
}
