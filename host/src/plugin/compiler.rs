//! The compiler. What compiling takes follows from the size of the code as long as a compiler wrote that. A few kilobytes of
//! loops within loops take gigabytes and hours: so the operator lets a process of its own do it, which has limits and nothing
//! to lose.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use wasmtime::{Config, Engine};

use super::contract::{code_bytes, foreign};
use super::engine::{CodeError, Exceeded, end_in, limit};
use crate::model::metrics::METRICS;

/// Seconds of CPU for compiling: so many, and as many for each MiB of code. A plugin of some size takes two per MiB.
const SECONDS: u64 = 10;
/// The same in seconds of the clock, should it do something else than compute: so many times as many, since a container may have
/// a part of a CPU.
const PATIENCE: u64 = 20;
/// Bytes that the allocator takes beyond what it gives out, before the first of them; and a quarter of what it gives out.
const SET_ASIDE: u64 = 40 << 20;
/// What the process says before it ends where memory is out; the allocator of Rust says it likewise, with the figure.
const OUT_OF_MEMORY: &str = "memory allocation failed";
/// Of what it says, the end is kept.
const LAST_WORDS: usize = 4 << 10;
/// Before the process's answer.
const GOOD: u8 = b'+';
const BAD: u8 = b'-';

/// Where compiling is done.
#[derive(Clone)]
pub(super) enum Compiler {
    /// In this process, as those do who answer for the file.
    Here,
    /// In a process of its own.
    Process {
        /// This program.
        program: PathBuf,
        /// Bytes that one compile may need.
        most: u64,
    },
}

/// Bytes that compiling needs at its peak, by the size of the code, as resident memory: measured with guests that have 20 KiB
/// to 9 MiB of it, the upper end.
pub fn need(code: u64) -> u64 {
    (16 << 20) + code * 55
}

/// The limit on a process that may need so much: what the plugins and guests here were found to take, the upper end.
fn with_allocator(need: u64) -> u64 {
    need + need / 4 + SET_ASIDE
}

/// One set of settings for compiler and engine; code of other settings is refused.
pub(super) fn config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .native_unwind_info(false)
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(20))
        .wasm_multi_memory(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(2 << 20);
    config
}

impl Compiler {
    /// Compiles a component.
    ///
    /// # Errors
    /// When the compiler refuses it, or takes too much.
    pub fn compile(&self, digest: &str, component: &[u8]) -> Result<Vec<u8>, CodeError> {
        let _span = tracing::debug_span!("compile", digest).entered();
        let started = Instant::now();
        let code = match self {
            Self::Here => compile(component).map_err(CodeError::Compile),
            Self::Process { program, most } => {
                let code = code_bytes(component);
                // A little over what its size says, since that is measured and not known.
                let memory = with_allocator((need(code) * 6 / 5).min(*most));
                let limits = Limits { memory, seconds: SECONDS * (1 + (code >> 20)) };
                apart(program, component, limits).unwrap_or_else(|error| {
                    tracing::warn!(program = %program.display(), %error, "no process can be started for the compiler; it compiles without limits");
                    compile(component).map_err(CodeError::Compile)
                })
            }
        };
        METRICS.plugin_compile_seconds.observe(started.elapsed().as_secs_f64());
        code
    }
}

/// In an engine that is thrown away.
fn compile(component: &[u8]) -> Result<Vec<u8>, String> {
    let code = Engine::new(&config()).and_then(|engine| engine.precompile_component(component));
    code.map_err(|e| foreign(&format!("{e:#}")))
}

/// What the compiler's process may use.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Limits {
    /// Bytes beyond those that it begins with
    #[arg(long)]
    memory: u64,
    /// Seconds of CPU, not of time: it computes and does nothing else
    #[arg(long)]
    seconds: u64,
}

/// In a process of its own.
///
/// # Errors
/// When it cannot be started.
fn apart(program: &Path, component: &[u8], limits: Limits) -> io::Result<Result<Vec<u8>, CodeError>> {
    let mut child = Command::new(program)
        .args(["plugin", "compile-here"])
        .args(["--memory", &limits.memory.to_string(), "--seconds", &limits.seconds.to_string()])
        .env_clear()
        // What the allocator sets aside in advance would count as used, and could then be used without counting.
        .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut answer = vec![];
    let (read, said) = std::thread::scope(|scope| {
        // Beside the answer: whichever is not read would stop the process.
        let said = scope.spawn(|| stderr.map(last_words).unwrap_or_default());
        // It reads all before it writes. One that fell meanwhile is told by its end.
        let _ = stdin.map(|mut stdin| stdin.write_all(component));
        let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut answer));
        (read, said.join().unwrap_or_default())
    });
    // It sees to its own end, in time.
    let status = child.wait()?;
    read?;
    Ok(match (answer.first(), status.signal()) {
        (Some(&GOOD), None) if status.success() => Ok(answer.split_off(1)),
        (Some(&BAD), None) if status.success() => {
            Err(CodeError::Compile(foreign(&String::from_utf8_lossy(&answer[1..]))))
        }
        (_, signal) => Err(match signal.and_then(|signal| limits.met(signal, &said)) {
            Some(exceeded) => CodeError::Costly(exceeded),
            None => CodeError::Died { status: status.to_string(), said: foreign(&said) },
        }),
    })
}

impl Limits {
    /// The limit that a process met which ended by this signal with these words.
    fn met(self, signal: i32, said: &str) -> Option<Exceeded> {
        match signal {
            libc::SIGXCPU => Some(Exceeded::Cpu { seconds: self.seconds }),
            libc::SIGALRM => Some(Exceeded::Clock { seconds: self.seconds * PATIENCE }),
            libc::SIGABRT if said.contains("memory allocation") => Some(Exceeded::Memory { mib: self.memory >> 20 }),
            _ => None,
        }
    }
}

/// The last line of what a process says until it ends.
fn last_words(mut stderr: impl Read) -> String {
    let (mut kept, mut piece) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = stderr.read(&mut piece) {
        kept.extend_from_slice(&piece[..read]);
        kept.drain(..kept.len().saturating_sub(LAST_WORDS));
    }
    let text = String::from_utf8_lossy(&kept);
    // After a panic, or where memory is out, Rust's advice on backtraces follows.
    let says = |line: &&str| !line.is_empty() && !line.starts_with("note: ");
    text.lines().map(str::trim).rfind(says).unwrap_or_default().to_owned()
}

/// What that process does: compiles standard input to standard output.
///
/// # Errors
/// When it is not spoken to as [`Compiler`] does.
pub fn compile_here(limits: Limits) -> io::Result<()> {
    // The compiler panics where memory is out. To say so would take more of it, while its locks are held.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload_as_str().is_some_and(|text| text.contains("out of memory")) {
            let _ = io::stderr().write_all(OUT_OF_MEMORY.as_bytes());
            std::process::abort();
        }
    }));
    end_in(limits.seconds * PATIENCE);
    limit(libc::RLIMIT_CORE, 0, 0)?;
    // At the first the process is told, by a signal of its own; at the second it would be killed as anybody might kill it.
    limit(libc::RLIMIT_CPU, limits.seconds, limits.seconds + 5)?;
    let data = data_bytes()? + limits.memory;
    limit(libc::RLIMIT_DATA, data, data)?;
    // Where memory is scarce all the same, this process goes and not the operator.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let mut component = vec![];
    io::stdin().read_to_end(&mut component)?;
    let (mark, answer) = match std::panic::catch_unwind(|| compile(&component)) {
        Ok(Ok(code)) => (GOOD, code),
        Ok(Err(why)) => (BAD, why.into_bytes()),
        Err(_) => (BAD, b"the compiler panicked".to_vec()),
    };
    let mut out = io::stdout().lock();
    out.write_all(&[mark])?;
    out.write_all(&answer)?;
    out.flush()
}

/// Bytes that count against `RLIMIT_DATA` already, such as the stacks of threads.
fn data_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
