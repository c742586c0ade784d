//! The engine that runs components, and the cache of compiled code.
//!
//! Code is compiled in a throw-away engine, since an engine keeps the compiler's scratch memory for its life
//! (bytecodealliance/wasmtime#14314). It is then mapped from the cache, where pages cost nothing until they run.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::compiler::{Compiler, config};
use super::contract::foreign;
use super::limits::TICK;
use crate::model::metrics::METRICS;
use crate::model::spec_hash::hex;

/// Part of every cache key: wasmtime itself compares only its major version.
const WASMTIME: &str = "48.0.8";

/// Compiled plugins in the cache; a name has one or two at a time.
const KEPT: usize = 64;

/// Why code could not be made or loaded.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(CodeRefused),
    derive(strum::EnumIter, strum::IntoStaticStr),
    strum(serialize_all = "kebab-case")
)]
#[strum_discriminants(doc = "The kinds of [`CodeError`], as the documentation names them.")]
pub enum CodeError {
    /// The compiler refused the component.
    #[error("it does not compile ({0}); build it again with current tools")]
    Compile(String),
    /// The compiler needed far more than the code's size lets expect.
    #[error(
        "compiling it takes over {0}, far more than code of its size does; cut its largest function into smaller ones, or run `proxy-operator plugin compile` on a machine with this CPU and put what it writes beside the .wasm into --plugin-dir"
    )]
    Costly(Exceeded),
    /// The compiler's process came to an end that none of its limits explains.
    #[error(
        "the process that compiled it died ({status}{}); is the machine or the control group out of memory? It is tried again when the operator starts; or run `proxy-operator plugin compile` on a machine with this CPU and put what it writes beside the .wasm into --plugin-dir",
        if said.is_empty() { String::new() } else { format!(": {said}") }
    )]
    Died {
        /// How, with the signal where it was one.
        status: String,
        /// The last line that it wrote.
        said: String,
    },
    /// Compiled code was refused by the engine.
    #[error("its compiled code cannot be loaded ({0}); please report this text with the plugin")]
    Load(String),
}

/// A limit of the compiler, and how much that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Of memory.
    #[error("{mib} MiB of memory")]
    Memory {
        /// MiB that it had.
        mib: u64,
    },
    /// Of computing.
    #[error("{seconds} s of CPU")]
    Cpu {
        /// Seconds that it had.
        seconds: u64,
    },
    /// Of time, where it computes slowly or not at all.
    #[error("{seconds} s, with less of the CPU than it needs")]
    Clock {
        /// Seconds that it had.
        seconds: u64,
    },
}

/// Compiles and loads components. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    engine: Engine,
    cache: Option<Arc<PathBuf>>,
    /// What the administrator compiled elsewhere; only read.
    precompiled: Option<Arc<PathBuf>>,
    compiler: Compiler,
    // One compile at a time: two would double the peak of memory.
    compiling: Arc<Mutex<()>>,
}

/// How code came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled just now.
    Compiled,
    /// Mapped from the cache.
    Cache,
}

impl Runtime {
    /// An engine with its ticker; compiled code is kept in `cache_dir` where one is given.
    ///
    /// # Errors
    /// When wasmtime does not know this machine.
    pub fn new(cache_dir: Option<PathBuf>) -> wasmtime::Result<Self> {
        let mut config = config();
        config.enable_compiler(false);
        let engine = Engine::new(&config)?;
        let ticker = engine.weak();
        // A thread of its own: a starved runtime would stop the very clock that is to free it.
        std::thread::Builder::new().name("epoch-ticker".into()).spawn(move || {
            while let Some(engine) = ticker.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        })?;
        let cache = cache_dir.map(Arc::new);
        Ok(Self { engine, cache, precompiled: None, compiler: Compiler::Here, compiling: Arc::default() })
    }

    /// Compiling in a process of its own, for files that nobody answers for. `program`: this one; `most`: bytes that one
    /// compile may need.
    pub fn with_compiler(self, program: PathBuf, most: u64) -> Self {
        Self { compiler: Compiler::Process { program, most }, ..self }
    }

    /// With a folder of compiled code that the administrator answers for, as `plugin compile` writes it.
    pub fn with_precompiled(self, dir: &Path) -> Self {
        Self { precompiled: Some(Arc::new(dir.to_owned())), ..self }
    }

    /// The engine that runs components.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Code that the cache holds.
    pub fn kept(&self, digest: &str) -> Option<Component> {
        let name = self.file(digest);
        let mut damaged = false;
        for (dir, hit) in [(&self.precompiled, "precompiled"), (&self.cache, "hit")] {
            let Some(path) = dir.as_ref().map(|dir| dir.join(&name)) else { continue };
            if let Some(code) = self.map(&path) {
                METRICS.plugin_cached(hit);
                return Some(code);
            }
            damaged |= path.exists();
        }
        METRICS.plugin_cached(if damaged { "damaged" } else { "miss" });
        None
    }

    /// The file of a component's code, by the component's digest (hexadecimal).
    pub fn file(&self, digest: &str) -> String {
        format!("{digest}-{}.cwasm", self.key())
    }

    /// Code of a component, from the cache or compiled. Blocks: up to seconds for a large component.
    ///
    /// # Errors
    /// When the component does not compile, or its code does not load.
    pub fn code(&self, digest: &str, component: &[u8]) -> Result<(Component, Origin), CodeError> {
        let path = self.cache.as_deref().map(|dir| dir.join(self.file(digest)));
        let _one = self.compiling.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Another thread may have compiled the same bytes while this one waited.
        if let Some(code) = path.as_deref().and_then(|path| self.map(path)) {
            return Ok((code, Origin::Cache));
        }
        let code = self.compiler.compile(digest, component)?;
        if let Some(path) = &path {
            match keep(path, &code) {
                Ok(()) => {
                    self.tidy();
                    if let Some(component) = self.map(path) {
                        return Ok((component, Origin::Compiled));
                    }
                }
                Err(e) => {
                    METRICS.plugin_cached("unwritable");
                    tracing::warn!(path = %path.display(), error = %e, "compiled code cannot be kept; it is compiled again at the next start")
                }
            }
        }
        // SAFETY: `code` was made by this process's own compiler a few lines above.
        let component = unsafe { Component::deserialize(&self.engine, &code) };
        component.map(|c| (c, Origin::Compiled)).map_err(|e| CodeError::Load(foreign(&format!("{e:#}"))))
    }

    /// Maps a kept file; none when it is missing, damaged or made by another engine.
    fn map(&self, path: &Path) -> Option<Component> {
        let wanted = fs::read_to_string(digest_path(path)).ok()?;
        // In pieces: the code of a large plugin would be in memory twice.
        let mut hasher = Sha256::new();
        let mut file = fs::File::open(path).ok()?;
        let mut piece = vec![0; 64 << 10];
        while let read @ 1.. = file.read(&mut piece).ok()? {
            hasher.update(&piece[..read]);
        }
        if hex(&hasher.finalize()) != wanted.trim() {
            return None;
        }
        // SAFETY: the cache is written by this operator alone (mode 0700), the folder of precompiled code by the
        // administrator who starts it; the digest beside the file shows that the code is what was written, and files are
        // only ever replaced by rename, never written while mapped.
        unsafe { Component::deserialize_file(&self.engine, path) }
            // A folder mounted `noexec` cannot be mapped; its bytes can be loaded.
            .or_else(|e| {
                let code = fs::read(path).ok().filter(|code| hex(&Sha256::digest(code)) == wanted.trim()).ok_or(e)?;
                // SAFETY: as above; the digest of these very bytes was just compared.
                unsafe { Component::deserialize(&self.engine, &code) }
            })
            .ok()
    }

    /// Removes the code that was not asked for the longest, and what another wasmtime or CPU left.
    fn tidy(&self) {
        if let Some(dir) = &self.cache {
            prune(dir, "cwasm", KEPT);
        }
    }

    /// Names everything that compiled code depends on but the component: wasmtime's version, settings and CPU.
    fn key(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        WASMTIME.hash(&mut hasher);
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

fn digest_path(path: &Path) -> PathBuf {
    path.with_extension("cwasm.sha256")
}

/// Writes code and its digest.
fn keep(path: &Path, code: &[u8]) -> io::Result<()> {
    replace(path, code)?;
    replace(&digest_path(path), hex(&Sha256::digest(code)).as_bytes())
}

/// Writes a temporary file and renames it: a file that is mapped, or that another process reads, never changes.
pub(super) fn replace(to: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let temporary = to.with_extension(format!("tmp-{}", uuid::Uuid::new_v4().simple()));
    let written = fs::File::create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, to));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Limits what this process may use, softly and at last. Here because the repository keeps what is unsafe in one place.
pub(super) fn limit(what: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is to a struct that lives until the call returns.
    match unsafe { libc::setrlimit(what, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process after so many seconds, unless it ended before.
pub(super) fn end_in(seconds: u64) {
    // SAFETY: it takes a number. Nobody waits for the signal, so that it ends the process.
    unsafe { libc::alarm(seconds.try_into().unwrap_or(u32::MAX)) };
}

/// Removes all but the `keep` newest files of a kind, each with its digest.
pub(super) fn prune(dir: &Path, extension: &str, keep: usize) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(keep) {
        // Mapped code stays until it is let go of; another process may have been faster.
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(digest_path(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_key_names_the_wasmtime_that_is_linked() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{WASMTIME}\"")));
    }

    #[test]
    fn kept_code_is_mapped_again_and_damage_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let component = b"\0asm\x0d\0\x01\0";
        let code =
            |digest: &str| Runtime::new(Some(dir.path().join("code"))).unwrap().code(digest, component).unwrap().1;
        assert_eq!(code("d1"), Origin::Compiled);
        assert_eq!(code("d1"), Origin::Cache);
        assert_eq!(code("d2"), Origin::Compiled);
        for entry in fs::read_dir(dir.path().join("code")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "cwasm") {
                let mut bytes = fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::remove_file(&path).unwrap();
                fs::write(&path, bytes).unwrap();
            }
        }
        assert_eq!(code("d1"), Origin::Compiled);
        assert_eq!(code("d1"), Origin::Cache);
    }
}
