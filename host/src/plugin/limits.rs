//! What one call may use.

use std::time::Duration;

use wasmtime::ResourceLimiter;

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
/// Log records of one call.
pub const LOG_RECORDS: u32 = 200;
/// One `random.bytes`.
pub const RANDOM_BYTES: u32 = 64 << 10;
/// A continuation.
pub const CONTINUATION_BYTES: usize = 4 << 10;
/// Instances of all pages of a listing.
pub const LIST_INSTANCES: usize = 100_000;
/// Pages of a listing. Backends that filter after paging give nearly empty ones.
pub const LIST_PAGES: usize = 5_000;
/// A `.wasm` file.
pub const FILE_BYTES: usize = 32 << 20;
/// Between two checks whether a call may go on; also how long a busy guest holds its thread.
pub const TICK: Duration = Duration::from_millis(10);
/// The deadline of `describe`.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Counts what a call holds. wasmtime's own limiter counts each memory for itself.
#[derive(Default)]
pub struct Limiter {
    memory: usize,
    table: usize,
    /// The limit that was met, for the text of the trap that follows.
    pub hit: Option<String>,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory - current.min(self.memory) + desired;
        if total > MEMORY_BYTES {
            self.hit = Some(format!("its memory limit of {} MiB", MEMORY_BYTES >> 20));
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.table - current.min(self.table) + desired;
        if total > TABLE_ELEMENTS {
            self.hit = Some(format!("its limit of {TABLE_ELEMENTS} table elements"));
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
