//! Random bytes. Names and request ids must not use them: a repeated create has to converge.

use crate::bindings::crawl::provider::random as host;

/// `len` bytes from the host's cryptographic generator, 64 KiB at most.
pub fn bytes(len: u32) -> Vec<u8> {
    host::bytes(len)
}
