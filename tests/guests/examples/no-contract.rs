//! A core module without component type information: the host refuses it, saying what is missing.

/// Its only export.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> i32 {
    42
}
