//! What is logged, also while the operator runs.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::rest::local::SetLog;

/// Begins to log to standard error; answers how the filter is changed later.
pub(super) fn init(filter: &str, json: bool) -> SetLog {
    let first = EnvFilter::try_new(filter).unwrap_or_else(|error| {
        eprintln!("warning: --log {filter:?} is passed over: {error}");
        EnvFilter::new("info")
    });
    let (first, handle) = reload::Layer::new(first);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines: Box<dyn Layer<Registry> + Send + Sync> =
        if json { lines.json().flatten_event(true).boxed() } else { lines.boxed() };
    tracing_subscriber::registry().with(lines.with_filter(first)).init();
    std::sync::Arc::new(move |filter| {
        let parsed = EnvFilter::try_new(filter).map_err(|e| format!("{filter:?} is no filter: {e}"))?;
        handle.reload(parsed).map_err(|e| e.to_string())
    })
}
