//! A process of the product: started, watched, and ended by its id.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing that works takes longer, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running process of the product.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the product's binary and waits for the line on its stdout that says it is up; answers that line.
    pub fn start(args: &[&str], log: &Path) -> (Self, String) {
        Self::start_in(None, args, log)
    }

    /// The same in a control group, from its first page of memory on.
    pub fn start_in(group: Option<&Path>, args: &[&str], log: &Path) -> (Self, String) {
        let (process, line) = Self::launch(group, args, log);
        let line = line.recv_timeout(PATIENCE).unwrap_or_default();
        assert!(!line.is_empty(), "{args:?} did not start:\n{}", process.log());
        (process, line.trim().to_owned())
    }

    /// Starts it without waiting; its first line comes later, or never.
    pub fn launch(group: Option<&Path>, args: &[&str], log: &Path) -> (Self, mpsc::Receiver<String>) {
        let command = match group {
            None => Command::new(crate::binary()),
            Some(group) => after(r#"echo $$ >"$0"/cgroup.procs && exec "$@""#, &[group.as_os_str()]),
        };
        Self::spawn(command, args, log)
    }

    /// The same, stopped before its first step: the signal CONT lets it go on.
    pub fn launch_stopped(args: &[&str], log: &Path) -> Self {
        let (process, _) = Self::spawn(after(r#"kill -STOP $$ && exec "$0" "$@""#, &[]), args, log);
        let until = Instant::now() + PATIENCE;
        while !process.stat().starts_with("T ") {
            assert!(Instant::now() < until, "it does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    fn spawn(mut command: Command, args: &[&str], log: &Path) -> (Self, mpsc::Receiver<String>) {
        let stderr = File::options().create(true).append(true).open(log).unwrap();
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let process = Self { child, log: log.to_owned() };
        let (said, line) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout);
            let mut first = String::new();
            let _ = lines.read_line(&mut first);
            let _ = said.send(first);
            // Read on, so that the process never waits for us.
            let _ = lines.read_to_end(&mut Vec::new());
        });
        (process, line)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Time that processors spent on it so far.
    pub fn cpu_time(&self) -> Duration {
        // User time is the 12th field, system time the 13th, in hundredths.
        let ticks = self.stat();
        let ticks = ticks.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// The most memory that it held at once, in bytes.
    pub fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// What the kernel says of it, after its name, which may hold anything; its state first.
    fn stat(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.to_owned()
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends it a signal: TERM, STOP, CONT.
    pub fn signal(&self, name: &str) {
        // The child was not waited for yet, so its id is its own.
        let told = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Asks it to end, and waits until it did; answers its exit code.
    pub fn stop(self) -> Option<i32> {
        self.signal("TERM");
        self.end()
    }

    /// Waits until it has ended; answers its exit code.
    pub fn end(mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.code(),
                None if Instant::now() > until => panic!("it did not end:\n{}", self.log()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Ends it without a chance to tidy up, as a crash does.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The product's binary, in the place of a shell that did something first.
fn after(script: &str, arguments: &[&OsStr]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).args(arguments).arg(crate::binary());
    shell
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
