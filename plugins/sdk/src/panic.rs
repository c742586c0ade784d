//! A panic becomes a trap, and a trap has no text. So the text goes through `log` first; the host adds it to the error.

use std::panic::PanicHookInfo;

use crate::bindings::crawl::provider::log::{Level, write};

/// Called at the start of every export: each call is a fresh instance, and nothing else runs before it.
pub(crate) fn install_hook() {
    // Natively there is no host to write to, and a test's own panic must stay readable.
    if cfg!(target_family = "wasm") {
        std::panic::set_hook(Box::new(report));
    }
}

fn report(info: &PanicHookInfo<'_>) {
    write(Level::Error, &text(info), &[("panic".into(), "true".into())]);
}

fn text(info: &PanicHookInfo<'_>) -> String {
    let what = info.payload_as_str().unwrap_or("no text");
    match info.location() {
        Some(at) => format!("{what} ({}:{}:{})", at.file(), at.line(), at.column()),
        None => what.to_owned(),
    }
}
