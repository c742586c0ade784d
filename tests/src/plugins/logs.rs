//! What the operator would have logged, at every level.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// Catches the log of this thread from here on. On a runtime of one thread that is the log of all its tasks.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

/// Ends the catching when dropped.
#[must_use = "the log is caught until this is dropped"]
pub struct Catching(#[allow(dead_code)] Box<dyn std::any::Any>);

impl Logs {
    /// Begins to catch.
    pub fn catch() -> (Self, Catching) {
        let logs = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(logs.clone())
            .finish();
        (logs, Catching(Box::new(tracing_subscriber::util::SubscriberInitExt::set_default(subscriber))))
    }

    /// All that was caught.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
