//! Commands over SSH through a named connection. The host adds address, account and keys, and quotes each word.
//!
//! ```no_run
//! # use crawl_provider_sdk::{Error, ssh};
//! # fn f() -> Result<(), Error> {
//! let all = ssh::command("home1", ["virsh", "list", "--all", "--uuid"]).read_only().run()?.ok()?.text()?;
//! # Ok(()) }
//! ```

use crate::Error;
use crate::bindings::crawl::provider::ssh as host;
pub use crate::bindings::crawl::provider::ssh::Ended;

/// The host bounds it by the rest of the call's deadline; alone it only stops a command that never ends.
const TIMEOUT_MS: u32 = 30_000;
/// Enough for a listing; the host's own maximum is higher.
const MAX_OUTPUT: u32 = 256 << 10;
/// How much of standard error an error quotes.
const QUOTED: usize = 200;

/// One command.
#[must_use = "a command runs with run()"]
pub struct Command {
    connection: String,
    command: host::Command,
    mutating: bool,
}

/// Program and arguments. Nothing needs quoting: each word arrives as it is.
pub fn command<W: Into<String>>(connection: &str, argv: impl IntoIterator<Item = W>) -> Command {
    let argv = argv.into_iter().map(Into::into).collect();
    let command = host::Command { argv, stdin: vec![], timeout_ms: TIMEOUT_MS, max_output: MAX_OUTPUT };
    Command { connection: connection.into(), command, mutating: true }
}

impl Command {
    /// Bytes for standard input, which ends after them.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.command.stdin = bytes.into();
        self
    }

    /// Bounds the wait; a command that takes longer is stopped.
    pub fn timeout_ms(mut self, limit: u32) -> Self {
        self.command.timeout_ms = limit;
        self
    }

    /// Bytes kept of each of standard output and standard error.
    pub fn max_output(mut self, bytes: u32) -> Self {
        self.command.max_output = bytes;
        self
    }

    /// Declares that it changes nothing, so that a lost answer is only `transient`.
    pub fn read_only(mut self) -> Self {
        self.mutating = false;
        self
    }

    /// Runs it. Only faults are errors; how it ended is for [`Output::ok`] or for the caller.
    pub fn run(self) -> Result<Output, Error> {
        let program = self.command.argv.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
        let what = format!("{program:?} on connection {}", self.connection);
        match host::exec(&self.connection, &self.command) {
            Ok(output) => Ok(Output::new(what, self.mutating, output)),
            Err(fault) => {
                let mut error = Error::from_fault(&fault, self.mutating);
                error.message = format!("{what}: {}", error.message);
                Err(error)
            }
        }
    }
}

/// What a command said, however it ended.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub ended: Ended,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Whether some of them is missing.
    pub truncated: bool,
    what: String,
    mutating: bool,
}

impl Output {
    /// Wraps an output of the host; `what` names the command in errors. Public for tests of what an end leads to.
    pub fn new(what: impl Into<String>, mutating: bool, output: host::Output) -> Self {
        let host::Output { ended, stdout, stderr, truncated } = output;
        Self { ended, stdout, stderr, truncated, what: what.into(), mutating }
    }

    /// Whether it ended with status 0.
    pub fn success(&self) -> bool {
        matches!(self.ended, Ended::Status(0))
    }

    /// The output when it ended with status 0, else [`Output::error`].
    pub fn ok(self) -> Result<Self, Error> {
        if self.success() { Ok(self) } else { Err(self.error()) }
    }

    /// The error that its end stands for. Statuses that mean something at a program are looked at before.
    pub fn error(&self) -> Error {
        match &self.ended {
            // The shell's own: there is no such program, or it may not be run.
            Ended::Status(126 | 127) => {
                Error::config_missing(format!("{} cannot be run there{}", self.what, self.quote()))
                    .reason("CommandMissing")
            }
            Ended::Status(status) => {
                Error::transient(format!("{} failed with status {status}{}", self.what, self.quote()))
                    .reason("CommandFailed")
            }
            Ended::Signal(signal) => {
                let text = format!("{} was ended by signal {signal}{}", self.what, self.quote());
                // It may have done half of its work.
                let error = if self.mutating { Error::unknown_outcome(text) } else { Error::transient(text) };
                error.reason("CommandKilled")
            }
        }
    }

    /// Standard output as text, when all of it is there. After a change, which did happen, one that cannot be read is an
    /// unknown outcome.
    pub fn text(&self) -> Result<&str, Error> {
        let why = match std::str::from_utf8(&self.stdout) {
            Ok(text) if !self.truncated => return Ok(text),
            Ok(_) => "more than was asked for",
            Err(_) => "no UTF-8",
        };
        let text = format!("{} said {why}", self.what);
        let error = if self.mutating { Error::unknown_outcome(text) } else { Error::internal(text) };
        Err(error.reason("UnexpectedAnswer"))
    }

    /// A piece of standard error, as far as it is readable on one line.
    fn quote(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED).collect();
        if line.trim().is_empty() { String::new() } else { format!(": {}", line.trim()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn mk_output(ended: Ended, mutating: bool) -> Output {
        let output = host::Output { ended, stdout: b"out\n".to_vec(), stderr: b"no\nway\n".to_vec(), truncated: false };
        Output::new("\"virsh list\" on connection home1", mutating, output)
    }

    #[test]
    fn an_end_leads_to_a_kind() {
        let cases = [
            (Ended::Status(1), true, ErrorKind::Transient, "CommandFailed"),
            (Ended::Status(127), true, ErrorKind::ConfigMissing, "CommandMissing"),
            (Ended::Signal("KILL".into()), true, ErrorKind::UnknownOutcome, "CommandKilled"),
            (Ended::Signal("KILL".into()), false, ErrorKind::Transient, "CommandKilled"),
        ];
        for (ended, mutating, kind, reason) in cases {
            let error = mk_output(ended, mutating).ok().unwrap_err();
            assert_eq!((error.kind, error.reason.as_deref()), (kind, Some(reason)));
            assert!(error.message.contains("virsh list") && error.message.ends_with(": no way"), "{}", error.message);
        }
        assert_eq!(mk_output(Ended::Status(0), true).ok().unwrap().text().unwrap(), "out\n");
    }

    #[test]
    fn output_that_is_not_all_there_is_no_text() {
        for (truncated, stdout) in [(true, b"out".to_vec()), (false, vec![0xff])] {
            let mut output = mk_output(Ended::Status(0), false);
            (output.truncated, output.stdout) = (truncated, stdout);
            assert_eq!(output.text().unwrap_err().kind, ErrorKind::Internal);
            output.mutating = true;
            assert_eq!(output.text().unwrap_err().kind, ErrorKind::UnknownOutcome);
        }
    }
}
