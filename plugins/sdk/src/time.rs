//! Time, as the host tells it.

use std::time::Duration;

use crate::bindings::crawl::provider::clock as host;

/// Seconds since 1970, UTC.
pub fn now() -> u64 {
    host::now()
}

/// Time since an arbitrary start; never goes back.
pub fn monotonic() -> Duration {
    Duration::from_millis(host::monotonic_ms())
}

/// What is left of this call's deadline.
pub fn remaining() -> Duration {
    Duration::from_millis(host::remaining_ms().into())
}
