//! What one call may use.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::ResourceLimiterAsync;

use super::call::Progress;

/// All linear memories of one call together.
pub const MEMORY_BYTES: usize = 64 << 20;
/// All tables of one call together, elements. Each is 16 bytes in the host.
pub const TABLE_ELEMENTS: usize = 100_000;
/// Core instances, memories and tables of one component.
pub const COUNT: usize = 64;
/// Bytes that one host call may copy out of the guest.
pub const HOSTCALL_BYTES: usize = 8 << 20;
/// Component handles of one call.
pub const HANDLES: usize = 1024;
/// Body of one HTTP request or answer.
pub const BODY_BYTES: usize = 4 << 20;
/// Headers of one HTTP request or answer, all together.
pub const HEADER_BYTES: usize = 64 << 10;
/// Headers of one HTTP request or answer, in number.
pub const HEADER_COUNT: usize = 100;
/// Standard input of one command over SSH.
pub const STDIN_BYTES: usize = 4 << 20;
/// What is kept of standard output of one command over SSH, and of standard error.
pub const OUTPUT_BYTES: usize = 1 << 20;
/// One command over SSH, whatever the guest wishes.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// One log record.
pub const LOG_BYTES: usize = 8 << 10;
/// Fields of one log record.
pub const LOG_FIELDS: usize = 64;
/// Log records of one call.
pub const LOG_RECORDS: u32 = 200;
/// One `random.bytes`.
pub const RANDOM_BYTES: u32 = 64 << 10;
/// A continuation.
pub const CONTINUATION_BYTES: usize = 4 << 10;
/// Instances of all pages of a listing.
pub const LIST_INSTANCES: usize = 100_000;
/// All their texts together: each instance may have some kilobytes of them.
pub const LIST_BYTES: usize = 32 << 20;
/// Pages of a listing. Backends that filter after paging give nearly empty ones.
pub const LIST_PAGES: usize = 5_000;
/// A `.wasm` file.
pub const FILE_BYTES: usize = 32 << 20;
/// Between two checks whether a call may go on; also how long a busy guest holds its thread.
pub const TICK: Duration = Duration::from_millis(10);
/// The deadline of `describe`.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A limit that ends the call which meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Limit {
    /// Its time, `limits.callTimeout`.
    Time,
    /// [`MEMORY_BYTES`].
    Memory,
    /// [`TABLE_ELEMENTS`].
    Tables,
    /// [`COUNT`].
    Instances,
    /// The depth of its calls.
    Stack,
    /// [`HANDLES`].
    Handles,
    /// [`HOSTCALL_BYTES`].
    HostCall,
}

impl Limit {
    /// Its name in `docs/providers.md`.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// The limit that wasmtime's error tells of, where it enforces one by itself.
    pub(super) fn of(error: &wasmtime::Error) -> Option<Self> {
        if error.downcast_ref::<wasmtime::Trap>() == Some(&wasmtime::Trap::StackOverflow) {
            return Some(Self::Stack);
        }
        // These have no type of their own; the tests with hostile guests hold the words.
        let text = format!("{error:#}");
        let says = |words: &str| text.contains(words);
        if says("count too high at") {
            Some(Self::Instances)
        } else if says("no free keys") || says("maximum number of handles") {
            Some(Self::Handles)
        } else if says("too much data is being copied") {
            Some(Self::HostCall)
        } else {
            None
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Time => write!(f, "its time limit"),
            Self::Memory => write!(f, "its memory limit of {} MiB", MEMORY_BYTES >> 20),
            Self::Tables => write!(f, "its limit of {TABLE_ELEMENTS} table elements"),
            Self::Instances => write!(f, "its limit of {COUNT} instances, {COUNT} memories and {COUNT} tables"),
            Self::Stack => write!(f, "its limit of call depth"),
            Self::Handles => write!(f, "its limit of {HANDLES} open handles"),
            Self::HostCall => write!(f, "its limit of {} MiB in one host call", HOSTCALL_BYTES >> 20),
        }
    }
}

/// The memory that all calls of all plugins may hold together. What each may hold, times the calls at once, is more than most
/// machines have: so a call that needs more than is free waits until others have ended, within its time.
#[derive(Clone)]
pub(super) struct Memory(Arc<Semaphore>);

impl Memory {
    /// So many bytes, but never less than what one call may hold.
    pub fn of(bytes: u64) -> Self {
        let bytes = bytes.clamp(MEMORY_BYTES as u64, 1 << 40);
        Self(Arc::new(Semaphore::new((bytes / PAGE as u64) as usize)))
    }
}

/// A unit of [`Memory`].
const PAGE: usize = 64 << 10;

/// Counts what a call holds. wasmtime's own limiter counts each memory for itself.
pub(super) struct Limiter {
    memory: usize,
    table: usize,
    shared: Memory,
    held: Vec<OwnedSemaphorePermit>,
    progress: Arc<Progress>,
    /// The limit that was met, for the text of the trap that follows.
    pub hit: Option<Limit>,
}

impl Limiter {
    /// Of a call that holds nothing yet.
    pub fn new(shared: Memory, progress: Arc<Progress>) -> Self {
        Self { memory: 0, table: 0, shared, held: vec![], progress, hit: None }
    }

    /// Takes its part of the memory of all calls.
    async fn take(&mut self, total: usize) {
        let held: usize = self.held.iter().map(OwnedSemaphorePermit::num_permits).sum();
        let missing = u32::try_from(total.div_ceil(PAGE).saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 {
            return;
        }
        let permit = match self.shared.0.clone().try_acquire_many_owned(missing) {
            Ok(permit) => Ok(permit),
            Err(_) => self.progress.queued(self.shared.0.clone().acquire_many_owned(missing)).await,
        };
        // It is never closed.
        self.held.extend(permit);
    }
}

#[async_trait]
impl ResourceLimiterAsync for Limiter {
    async fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory - current.min(self.memory) + desired;
        if total > MEMORY_BYTES {
            self.hit = Some(Limit::Memory);
            return Ok(false);
        }
        self.take(total).await;
        self.memory = total;
        Ok(true)
    }

    async fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.table - current.min(self.table) + desired;
        if total > TABLE_ELEMENTS {
            self.hit = Some(Limit::Tables);
            return Ok(false);
        }
        self.table = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        COUNT
    }
    fn tables(&self) -> usize {
        COUNT
    }
    fn memories(&self) -> usize {
        COUNT
    }
}
