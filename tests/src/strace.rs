//! What a process asks its kernel for, made to fail, or made its last: right before that is done.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::process::PATIENCE;

/// Whether processes can be traced here; otherwise the reason is printed. On Debian root installs what is missing.
pub fn can_trace() -> bool {
    let works = || Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if works().is_err() {
        // It may be of no Debian, or nobody of importance.
        let _ = Command::new("apt-get").args(["install", "-y", "-q", "strace"]).output();
    }
    let can = works().is_ok_and(|status| status.success());
    if !can {
        println!("SKIPPED: strace cannot trace here: install it, and allow ptrace");
    }
    can
}

/// A process that is traced until this is dropped.
pub struct Tracer {
    strace: Child,
    record: PathBuf,
}

impl Tracer {
    /// Traces a process and all its threads from now on, and kills it right before it calls `call` for the `nth` time in
    /// one of them. `also` is recorded with it. With paths, only what is about those files counts.
    pub fn kill_at(process: u32, call: &str, nth: usize, also: &[&str], paths: &[PathBuf], record: &Path) -> Self {
        let traced = [&[call], also].concat().join(",");
        Self::attach(process, &traced, &format!("{call}:signal=KILL:when={nth}"), paths, record)
    }

    /// From now on these calls of a process on a file fail with this error, such as `ENOSPC`.
    pub fn fail(process: u32, calls: &str, error: &str, path: &Path, record: &Path) -> Self {
        Self::attach(process, calls, &format!("{calls}:error={error}"), &[path.to_owned()], record)
    }

    fn attach(process: u32, traced: &str, inject: &str, paths: &[PathBuf], record: &Path) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-o"]).arg(record).arg(format!("--trace={traced}")).arg(format!("--inject={inject}"));
        for path in paths {
            command.arg("-P").arg(path);
        }
        let mut strace =
            command.args(["-p", &process.to_string()]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut says = BufReader::new(strace.stderr.take().unwrap()).lines();
        let (told, attached) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let line = says.by_ref().map_while(Result::ok).find(|line| line.contains(" attached"));
            let _ = told.send(line.is_some());
            says.for_each(drop);
        });
        let this = Self { strace, record: record.to_owned() };
        assert!(attached.recv_timeout(PATIENCE).unwrap_or(false), "strace did not attach to {process}");
        this
    }

    /// Lets go of it; answers the calls until then, one a line.
    pub fn end(mut self) -> Vec<String> {
        self.let_go();
        fs::read_to_string(&self.record).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn let_go(&mut self) {
        // It was not waited for yet, so its id is its own. Told so, it lets the process go on by itself.
        let _ = Command::new("kill").args(["-INT", &self.strace.id().to_string()]).stderr(Stdio::null()).status();
        let _ = self.strace.wait();
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.let_go();
    }
}
