//! Host functions: the modules behind the imports of `wit/`. Capabilities, not addresses: a guest names a connection or a
//! secret that its Provider grants, and nothing else is reachable.

pub(super) mod address;
pub(super) mod http;
mod local;
mod secrets;
pub(super) mod ssh;
pub(super) mod wasi;
mod watch;

use super::bindings::crawl::provider::faults::{Fault, FaultKind};

/// A fault of the given class.
fn fault(kind: FaultKind, sent: bool, message: impl Into<String>) -> Fault {
    Fault { kind, sent, message: message.into() }
}
